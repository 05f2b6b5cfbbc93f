"""torch was compiled for a different NumPy than the installed one.

## What it finds
A tensor that cannot be converted to an array, and NumPy 2 with a torch older than 2.3, which was compiled for
NumPy 1.

## Why it matters
Everything that passes data between the two fails with "Numpy is not available": `tensor.numpy()`,
`torch.from_numpy`, datasets, metrics and plots.

## How to fix
Update torch, or downgrade NumPy: `pip install "numpy<2"`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known
from truestep.rules.env._versions import major, release

RULE = Meta(
    code="ENV13",
    severity="error",
    is_observed=is_known,
    fix="Install NumPy: pip install numpy.",
)
_FIRST_WITH_2 = (2, 3)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a NumPy that torch cannot use."""
    machine: Machine = evidence.machine
    version = machine.packages.get("numpy")
    is_too_new = bool(machine.torch) and release(machine.torch) < _FIRST_WITH_2 and major(version) >= 2
    if machine.numpy_error is None and not is_too_new:
        return
    fix = "Update torch to 2.3 or newer, or downgrade NumPy: pip install 'numpy<2'." if is_too_new else None
    if version is not None and not is_too_new:
        fix = f"Install a NumPy that torch {machine.torch_release} was built for: pip install -U torch numpy."
    yield Finding(
        message="torch cannot use the installed NumPy" if version else "NumPy is not installed",
        evidence=f"torch {machine.torch}, NumPy {version or 'not installed'}: "
        f"{machine.numpy_error or 'compiled for NumPy 1'}",
        fix=fix,
    )
