"""The package pynvml is installed, which nvidia-ml-py replaces.

## What it finds
`pynvml` among the installed packages, on a machine with an NVIDIA GPU.

## Why it matters
torch reads the GPU's utilization, temperature and memory through a module called `pynvml`. Two packages
provide it: the retired `pynvml`, about which torch warns at every import, and `nvidia-ml-py`. With both, the
one installed last wins.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known

RULE = Meta(
    code="ENV18",
    severity="info",
    is_observed=is_known,
    fix="Replace it: pip uninstall -y pynvml && pip install --force-reinstall nvidia-ml-py.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find the retired binding."""
    machine: Machine = evidence.machine
    version = machine.packages.get("pynvml")
    if version is not None and machine.has_card:
        other = machine.packages.get("nvidia-ml-py")
        yield Finding(
            message="pynvml is retired: torch warns about it at every import",
            evidence=f"pynvml {version}, nvidia-ml-py {other or 'not installed'}",
        )
