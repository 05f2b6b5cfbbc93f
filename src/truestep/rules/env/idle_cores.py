"""OMP_NUM_THREADS lets torch use one core of many.

## What it finds
`OMP_NUM_THREADS=1` in the environment, with four cores or more for one process.

## Why it matters
Right for each of many processes, which is why `torchrun` and cluster profiles set it; wrong for a single
one that computes on the CPU, where all operations then run on one core.

## How to fix
If one process is to have the machine: `unset OMP_NUM_THREADS`, or set it to the number of cores.
"""

from collections.abc import Iterator
from dataclasses import replace

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import SOUND, Machine, is_known

RULE = Meta(
    code="ENV15",
    severity="info",
    fix="If one process is to have the machine, unset OMP_NUM_THREADS.",
)
is_observed = is_known
_MANY = 4


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a single thread on many cores."""
    machine: Machine = evidence.machine
    granted = machine.num_granted_cores
    if machine.threads == 1 and machine.variables.get("OMP_NUM_THREADS") == "1" and granted >= _MANY:
        yield Finding(
            message=f"torch uses one of {granted} cores",
            evidence=f"OMP_NUM_THREADS=1; {granted} cores are granted",
        )


BUGGY = Evidence(machine=replace(SOUND, threads=1, variables={"OMP_NUM_THREADS": "1"}))
CLEAN = Evidence(machine=replace(SOUND, threads=8, variables={"OMP_NUM_THREADS": "8"}))
