"""torch has no kernels for this GPU.

## What it finds
A GPU whose compute capability the build was not compiled for. Kernels for 8.0 also run on 8.6 and 8.9, but
not on 7.5 or 9.0. Only code that is translated when it is loaded (`compute_90`) runs on newer GPUs.

## Why it matters
The first operation fails with "no kernel image is available for execution on the device", although
`torch.cuda.is_available()` is true.

## How to fix
A new GPU needs a build with a newer CUDA, an old one a build that still has its kernels.
"""

import re
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known
from truestep.rules.env._versions import major

RULE = Meta(
    code="ENV06",
    severity="error",
    is_observed=is_known,
    fix="Install a build of torch that has kernels for it: https://pytorch.org/get-started/locally.",
)
_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_INDEX = "https://download.pytorch.org/whl/"
_LAST_OF_12_6, _FIRST_OF_12_8 = (7, 0), (10, 0)

Capability = tuple[int, int]


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find cards without kernels."""
    machine: Machine = evidence.machine
    if machine.build_cuda is None or not machine.archs:
        return
    for device in machine.devices:
        if device.capability is None:
            continue
        one, two = (int(part) for part in device.capability.split("."))
        if not any(_runs_on(arch, (one, two)) for arch in machine.archs):
            yield Finding(
                message=f"torch {machine.torch} has no kernels for {device.name}",
                evidence=f"its compute capability is {device.capability}; the build has "
                f"{', '.join(machine.archs)}",
                fix=_advice((one, two), machine),
            )
            return


def _runs_on(arch: str, capability: Capability) -> bool:
    found = _ARCH.fullmatch(arch)
    if found is None:
        return True  # a name that is not known yet proves nothing
    target = (int(found[2]), int(found[3]))
    if found[4] == "a":
        return target == capability
    return target <= capability and (found[1] == "compute" or target[0] == capability[0])


def _advice(capability: Capability, machine: Machine) -> str | None:
    again = "pip install --force-reinstall torch --index-url "
    if capability >= _FIRST_OF_12_8:
        build = "cu130" if major(machine.driver_cuda) >= 13 else "cu129"
        return f"Install a build with CUDA 12.8 or newer, the first for this GPU: {again}{_INDEX}{build}."
    if capability <= _LAST_OF_12_6 and not (machine.build_cuda or "").startswith("12.6"):
        return f"Install the build with CUDA 12.6, the last for GPUs this old: {again}{_INDEX}cu126."
    return None
