"""OMP_NUM_THREADS limits torch to one of many cores.

## What it finds
`OMP_NUM_THREADS=1` in the environment, with four or more cores for one process.

## Why it matters
The setting suits many processes on one machine, which is why `torchrun` and cluster profiles set it. A single
process that computes on the CPU then runs all operations on one core.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known

RULE = Meta(
    code="ENV15",
    severity="info",
    is_observed=is_known,
    fix="If one process should use the whole machine, unset OMP_NUM_THREADS.",
)
_MANY = 4


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a single thread on many cores."""
    machine: Machine = evidence.machine
    granted = machine.num_granted_cores
    if machine.threads == 1 and machine.variables.get("OMP_NUM_THREADS") == "1" and granted >= _MANY:
        yield Finding(
            message=f"torch uses one of {granted} cores",
            evidence=f"OMP_NUM_THREADS=1; {granted} cores are available",
        )
