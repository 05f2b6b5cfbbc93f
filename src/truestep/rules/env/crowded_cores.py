"""torch uses more threads than it has cores.

## What it finds
A number of threads at least one and a half times the cores that the container's quota or the process's
affinity allows.

## Why it matters
torch counts the cores of the machine, not those of the container. With 64 threads on 2 cores the threads wait
for each other, and CPU operations are many times slower than with 2 threads. Each DataLoader worker and each
process of `torchrun` takes its share too.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known

RULE = Meta(
    code="ENV14",
    severity="warning",
    is_observed=is_known,
    fix="Set OMP_NUM_THREADS to the number of available cores.",
)
_TOO_MANY = 1.5


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find more threads than cores."""
    machine: Machine = evidence.machine
    granted = machine.num_granted_cores
    if machine.threads is None or machine.threads < _TOO_MANY * granted:
        return
    quota = f", a quota of {machine.cpu_quota:g}" if machine.cpu_quota is not None else ""
    yield Finding(
        message=f"torch uses {machine.threads} threads on {granted} core{'s' if granted != 1 else ''}",
        evidence=f"the machine has {machine.num_cores} cores, {machine.num_usable_cores} usable{quota}; "
        f"OMP_NUM_THREADS is {machine.variables.get('OMP_NUM_THREADS', 'not set')}",
        fix=f"export OMP_NUM_THREADS={granted}, or call torch.set_num_threads({granted}).",
    )
