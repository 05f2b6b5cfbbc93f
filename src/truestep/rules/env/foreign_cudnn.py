"""torch finds another cuDNN than the one that it brings.

## What it finds
A cuDNN that torch refuses: of another major version, or older than what it was compiled against.

## Why it matters
The first convolution fails, or every import of `torch.backends.cudnn` does. It is found through
`LD_LIBRARY_PATH`, or another package has replaced torch's `nvidia-cudnn` package.

## How to fix
Take the directory of that cuDNN out of `LD_LIBRARY_PATH`, or install torch again with its own.
"""

from collections.abc import Iterator
from dataclasses import replace

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import SOUND, Machine, is_known

RULE = Meta(
    code="ENV09",
    severity="error",
    fix="Install torch again with the cuDNN that it brings: pip install --force-reinstall torch.",
    is_preview=True,
)
is_observed = is_known


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a cuDNN that torch refuses."""
    machine: Machine = evidence.machine
    if machine.cudnn_error is None:
        return
    path = machine.variables.get("LD_LIBRARY_PATH", "")
    suspects = [part for part in path.split(":") if "cud" in part.lower()]
    yield Finding(
        message="torch refuses the cuDNN that it finds",
        evidence=machine.cudnn_error,
        fix=f"Take {', '.join(suspects)} out of LD_LIBRARY_PATH: torch brings its own cuDNN."
        if suspects
        else None,
    )


_REFUSED = "cuDNN version incompatibility: compiled against (9, 10, 2) but found runtime version (8, 9, 7)."
_PATH = {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}
BUGGY = Evidence(machine=replace(SOUND, cudnn=None, cudnn_error=_REFUSED, variables=_PATH))
CLEAN = Evidence(machine=replace(SOUND, variables=_PATH))
