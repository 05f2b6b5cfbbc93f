"""CUDA does not start, although driver and build fit.

## What it finds
`torch.cuda.is_available()` that is false, or a device on which adding two numbers fails, while the driver
sees cards, is new enough, and no variable hides them.

## Why it matters
torch falls back to the CPU with a warning that is easily missed. "CUDA unknown error" blames a variable
that was changed too late; more often the driver's module for shared memory was lost when the machine slept.

## How to fix
It depends on the message; see the advice. Restarting the machine helps in most cases.
"""

from collections.abc import Iterator
from dataclasses import replace

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import SOUND, Device, Machine, is_known
from truestep.rules.env._versions import major

RULE = Meta(
    code="ENV04",
    severity="error",
    fix="Restart the machine, or the container; if it stays, look at dmesg for messages that begin with "
    "NVRM.",
    caused_by=("ENV06",),
    is_preview=True,
)
is_observed = is_known
_ADVICE = {
    "not yet initialized": "Start NVIDIA's fabric manager, which cards that are joined by NVSwitch need: "
    "sudo systemctl start nvidia-fabricmanager.",
    "unsupported display driver": "Restart the machine: the driver's library and its loaded kernel module "
    "are of two versions.",
    "forward compatibility": "Take the cuda-compat package out of LD_LIBRARY_PATH, or restart the machine "
    "after the driver's update: this card does not run with it.",
    "unknown error": "Load the driver's module again (sudo modprobe -r nvidia_uvm && sudo modprobe "
    "nvidia_uvm), which is lost when a machine sleeps; in a container look for /dev/nvidia-uvm; and set "
    "CUDA_VISIBLE_DEVICES before Python starts.",
    "out of memory": "Free the card's memory: nvidia-smi shows which processes hold it.",
    "busy or unavailable": "End the process that holds the card, or set its compute mode back: sudo "
    "nvidia-smi -c DEFAULT.",
    "no answer": "Restart the machine: a card that hangs while it starts does not come back by itself.",
    "ECC": "Have the card looked at: its memory has errors that cannot be corrected.",
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
            yield _finding("CUDA does not start, although driver and build fit", machine.cuda_error)


def _finding(message: str, text: str) -> Finding:
    advice = [words for sign, words in _ADVICE.items() if sign in text]
    return Finding(message=message, evidence=text, fix=advice[0] if advice else None)


_UNKNOWN = "CUDA unknown error - this may be due to an incorrectly set up environment"
_BUSY = Device(name="NVIDIA A100-SXM4-40GB", capability="8.0")
BUGGY = Evidence(machine=replace(SOUND, is_cuda_available=False, devices=(), cuda_error=_UNKNOWN))
CLEAN = Evidence(machine=replace(SOUND, devices=(_BUSY, _BUSY), gpus=(_BUSY.name, _BUSY.name)))
