"""The limit on open files is too low for the workers of a DataLoader.

## What it finds
A limit of less than 1024 open files (`ulimit -n`).

## Why it matters
Each tensor that a worker passes on is an open file, in addition to those of the dataset. When they run out,
training ends with "Too many open files" or "received 0 items of ancdata", often far from the cause.

## How to fix
`ulimit -n 65536` in the shell that starts the script, or
`torch.multiprocessing.set_sharing_strategy("file_system")`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known

RULE = Meta(
    code="ENV17",
    severity="warning",
    is_observed=is_known,
    fix="Raise the limit in the shell that starts the script: ulimit -n 65536.",
)
_LEAST, _ENOUGH = 1024, 65536


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a low limit."""
    machine: Machine = evidence.machine
    if machine.max_files is None or machine.max_files >= _LEAST:
        return
    hard = machine.max_files_hard
    reach = _ENOUGH if hard is None else min(hard, _ENOUGH)
    fix = f"Raise the limit in the shell that starts the script: ulimit -n {reach}."
    if reach < _LEAST:
        fix = (
            f"Raise the hard limit (docker run --ulimit nofile={_ENOUGH}, or "
            "/etc/security/limits.conf), or call "
            'torch.multiprocessing.set_sharing_strategy("file_system").'
        )
    yield Finding(
        message=f"a process can open only {machine.max_files} files at once",
        evidence=f"soft limit {machine.max_files}, hard limit {'none' if hard is None else hard}",
        fix=fix,
    )
