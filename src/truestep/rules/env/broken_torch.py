"""torch is not installed, or cannot be imported.

## What it finds
An `import torch` that fails: torch is not installed, a library that it needs is missing, or a wrong version
of one is found first.

## Why it matters
You cannot train. The error names a file or a symbol, rarely the package that brought the wrong one. Most
often a path in `LD_LIBRARY_PATH` leads to another CUDA, or a package replaced one of torch's `nvidia-*`
packages.

## How to fix
Remove CUDA directories from `LD_LIBRARY_PATH`: torch brings its own libraries. If that does not help, install
torch into a new environment.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known

RULE = Meta(
    code="ENV01",
    severity="error",
    is_observed=is_known,
    fix="Install torch into a new environment: pip install torch.",
)
_ADVICE = {
    "No module named 'torch'": "Install it: pip install torch. The command for your machine is on "
    "https://pytorch.org/get-started/locally.",
    "undefined symbol": "Unset LD_LIBRARY_PATH and retry: torch must find the libraries that it brings, "
    "not those of another CUDA. If that does not help, reinstall torch with its nvidia-* packages.",
    "cannot open shared object file": "Reinstall torch together with the library: pip install "
    "--force-reinstall torch.",
    "GLIBC": "Install a build of torch for this system's C library, or use a newer system image.",
    "did not answer": "Check the disk with Python's packages: importing torch reads 1 GB.",
    "no answer": "Check the disk with Python's packages: importing torch reads 1 GB.",
}


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a torch that cannot be imported."""
    machine: Machine = evidence.machine
    if machine.torch_error is None:
        return
    is_missing = "No module named 'torch'" in machine.torch_error
    advice = [words for sign, words in _ADVICE.items() if sign in machine.torch_error]
    yield Finding(
        message="torch is not installed" if is_missing else "torch cannot be imported",
        evidence=machine.torch_error,
        fix=advice[0] if advice else None,
    )
