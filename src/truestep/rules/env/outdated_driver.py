"""The driver is too old for the CUDA that torch was built with.

## What it finds
CUDA does not start, and the highest CUDA version of the driver (the number in `nvidia-smi`) has a lower major
version than the build's (`torch.version.cuda`). Within one major version, older drivers run newer builds:
12.4 runs 12.8.

## Why it matters
torch prints a warning and falls back to the CPU. Installing another toolkit (`nvcc`) changes nothing: torch
brings its own CUDA, and only the driver comes from the system.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known
from truestep.rules.env._versions import major

RULE = Meta(
    code="ENV03",
    severity="error",
    is_observed=is_known,
    fix="Update NVIDIA's driver, or install a build of torch for an older CUDA.",
)
_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""See https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html."""
_BUILD_FOR = {12: "cu126"}
"""What torch is still built with, by the driver's major version of CUDA. Nothing for 11 since torch 2.8."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a driver that cannot run the build."""
    machine: Machine = evidence.machine
    has, wants = major(machine.driver_cuda), major(machine.build_cuda)
    if machine.is_cuda_available or not has or has >= wants:
        return
    least = f" to {_LEAST_DRIVER[wants]} or newer" if wants in _LEAST_DRIVER else ""
    fix = f"Update NVIDIA's driver{least}"
    if has in _BUILD_FOR:
        index = f"https://download.pytorch.org/whl/{_BUILD_FOR[has]}"
        fix += (
            f", or install a build that it supports: pip install --force-reinstall torch --index-url {index}"
        )
    yield Finding(
        message=f"the driver supports CUDA up to {machine.driver_cuda}, but torch was built with "
        f"{machine.build_cuda}",
        evidence=f"driver {machine.driver}, torch {machine.torch}; starting CUDA: "
        f"{machine.cuda_error or 'failed'}",
        fix=f"{fix}. The toolkit's version (nvcc) does not matter.",
    )
