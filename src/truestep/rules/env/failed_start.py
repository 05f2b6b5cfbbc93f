"""CUDA does not start, although driver and build match.

## What it finds
`torch.cuda.is_available()` is false, or adding two numbers on a device fails, while the driver sees GPUs, is
new enough, and no environment variable excludes them.

## Why it matters
torch falls back to the CPU with a warning that is easy to miss. "CUDA unknown error" blames a variable that
was changed too late. More often, the driver's module for shared memory was lost when the machine slept.

## How to fix
It depends on the error; see the finding's advice. Restarting the machine helps in most cases.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known
from truestep.rules.env._versions import major

RULE = Meta(
    code="ENV04",
    severity="error",
    is_observed=is_known,
    fix="Restart the machine or the container. If that does not help, search dmesg for lines that start with "
    "NVRM.",
    caused_by=("ENV06",),
)
_ADVICE = {
    "not yet initialized": "Start NVIDIA's fabric manager, which GPUs on an NVSwitch need: "
    "sudo systemctl start nvidia-fabricmanager.",
    "unsupported display driver": "Restart the machine: the driver's library and the loaded kernel module "
    "have different versions.",
    "forward compatibility": "Remove the cuda-compat package from LD_LIBRARY_PATH, or restart the machine "
    "after the driver update: this GPU does not support it.",
    "unknown error": "Reload the driver's module (sudo modprobe -r nvidia_uvm && sudo modprobe "
    "nvidia_uvm), which is lost when a machine sleeps. In a container, check /dev/nvidia-uvm. Set "
    "CUDA_VISIBLE_DEVICES before Python starts.",
    "out of memory": "Free the GPU's memory: nvidia-smi shows which processes use it.",
    "busy or unavailable": "End the process that uses the GPU, or reset its compute mode: sudo "
    "nvidia-smi -c DEFAULT.",
    "no answer": "Restart the machine: a GPU that hangs at start does not recover without a restart.",
    "ECC": "Have the GPU serviced: its memory has uncorrectable errors.",
}


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find cards that do not start."""
    machine: Machine = evidence.machine
    broken = [device for device in machine.devices if device.error]
    if broken:
        text = f"{broken[0].name}: {broken[0].error}"
        yield _finding(f"{len(broken)} of {len(machine.devices)} GPUs cannot be used", text)
    elif machine.cuda_error and machine.build_cuda and machine.gpus and not machine.is_cuda_available:
        is_new_enough = major(machine.driver_cuda) >= major(machine.build_cuda) or machine.driver_cuda is None
        if is_new_enough and machine.num_visible_gpus:
            yield _finding("CUDA does not start, although driver and build match", machine.cuda_error)


def _finding(message: str, text: str) -> Finding:
    advice = [words for sign, words in _ADVICE.items() if sign in text]
    return Finding(message=message, evidence=text, fix=advice[0] if advice else None)
