"""torch finds a different cuDNN than the one it brings.

## What it finds
A cuDNN that torch refuses: another major version, or older than the one it was compiled against.

## Why it matters
The first convolution fails, or every import of `torch.backends.cudnn` does. The library comes from
`LD_LIBRARY_PATH`, or another package replaced torch's `nvidia-cudnn` package.

## How to fix
Remove the directory of that cuDNN from `LD_LIBRARY_PATH`, or reinstall torch with its own.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known

RULE = Meta(
    code="ENV09",
    severity="error",
    is_observed=is_known,
    fix="Reinstall torch with the cuDNN that it brings: pip install --force-reinstall torch.",
)


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
        fix=f"Remove {', '.join(suspects)} from LD_LIBRARY_PATH: torch brings its own cuDNN."
        if suspects
        else None,
    )
