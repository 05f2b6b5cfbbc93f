"""There is an NVIDIA GPU and a torch for it, but the driver does not answer.

## What it finds
A GPU on the bus and a build of torch for CUDA, while `nvidia-smi` is missing or cannot reach the driver.

## Why it matters
torch falls back to the CPU without an error. Training is ten to a hundred times slower, and scripts that
choose the device by availability do not show it.

## How to fix
In a container: start it with `--gpus all` (it needs NVIDIA's container toolkit). Otherwise install the
driver. If it was updated, restart: the library and the loaded kernel module must have the same version.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known

RULE = Meta(
    code="ENV02",
    severity="warning",
    is_observed=is_known,
    fix="Install NVIDIA's driver; in a container, start it with --gpus all.",
)
_ADVICE = {
    "version mismatch": "Restart the machine: the driver was updated, and its library no longer matches the "
    "loaded kernel module.",
    "couldn't communicate": "Load the driver's kernel module (sudo modprobe nvidia), or reinstall the driver "
    "for the running kernel.",
    "Unknown Error": "Restart the container: it lost access to the GPU devices, which happens "
    "when systemd reloads on the host.",
    "No devices were found": "Check dmesg for messages that start with NVRM: the driver is loaded but "
    "lost the GPU. A restart brings it back.",
    "did not answer": "Check dmesg for messages that start with NVRM: a GPU that does not answer needs a "
    "restart.",
}
_CERTAIN = ("version mismatch", "Unknown Error", "did not answer")
"""What the driver only says where there is a card, though it may not be seen on the bus."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a card that no driver answers for."""
    machine: Machine = evidence.machine
    if machine.build_cuda is None or machine.is_cuda_available or machine.gpus:
        return
    error = machine.driver_error or ""
    if not machine.num_pci_gpus and not any(sign in error for sign in _CERTAIN):
        return  # an image with the driver in it may run on a machine without a card
    advice = [words for sign, words in _ADVICE.items() if sign in error]
    cards = f"{machine.num_pci_gpus} NVIDIA GPU{'s' if machine.num_pci_gpus != 1 else ''} on the bus"
    yield Finding(
        message="the machine has an NVIDIA GPU, but its driver does not answer"
        if machine.num_pci_gpus
        else "NVIDIA's driver does not answer",
        evidence=f"{cards}; nvidia-smi: {error or 'not installed'}",
        fix=advice[0] if advice else None,
    )
