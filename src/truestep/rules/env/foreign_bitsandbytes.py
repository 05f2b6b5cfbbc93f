"""bitsandbytes has no library for this CUDA version or platform.

## What it finds
An installed bitsandbytes without the compiled library for the CUDA that torch was built with.

## Why it matters
It can be imported and then lacks functions: `Linear8bitLt` is missing, or "CUDA Setup failed despite GPU
being available". Older versions had no library for Windows and macOS at all.

## How to fix
Update bitsandbytes. If it does not support a CUDA this new yet, install a torch with an older one.
"""

import re
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known
from truestep.rules.env._versions import major, release

RULE = Meta(
    code="ENV12",
    severity="warning",
    is_observed=is_known,
    fix="Update it: pip install -U bitsandbytes.",
)
_SUFFIX = {"linux": ".so", "darwin": ".dylib", "win32": ".dll"}
_FIRST_THAT_TAKES_THE_NEAREST = (0, 50)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a bitsandbytes without the right library."""
    machine: Machine = evidence.machine
    version = machine.packages.get("bitsandbytes")
    if version is None or not machine.quantizers:
        return
    suffix = _SUFFIX.get(machine.platform, ".so")
    mine = [name for name in machine.quantizers if name.endswith(suffix)]
    has = ", ".join(machine.quantizers)
    if not mine:
        yield Finding(
            message=f"bitsandbytes {version} has no library for this platform",
            evidence=f"it has {has}; {machine.platform} needs {suffix}",
            fix="Update it: pip install -U bitsandbytes; versions before 0.43 support only Linux.",
        )
    elif machine.build_cuda and not _has_cuda(mine, machine):
        yield Finding(
            message=f"bitsandbytes {version} has no library for CUDA {machine.build_cuda}, which torch was "
            "built with",
            evidence=f"it has {has}",
            fix=f"Update it: pip install -U bitsandbytes; if the newest has no cuda{_digits(machine)} "
            "either, install a torch built with one of those.",
        )


def _digits(machine: Machine) -> str:
    wanted = machine.variables.get("BNB_CUDA_VERSION") or machine.build_cuda or ""
    return wanted.replace(".", "")


def _has_cuda(libraries: list[str], machine: Machine) -> bool:
    found = {match[1] for name in libraries if (match := re.search(r"_cuda(\d+)", name))}
    if _digits(machine) in found:
        return True
    takes_nearest = release(machine.packages["bitsandbytes"]) >= _FIRST_THAT_TAKES_THE_NEAREST
    return takes_nearest and any(digits[:-1] == str(major(machine.build_cuda)) for digits in found)
