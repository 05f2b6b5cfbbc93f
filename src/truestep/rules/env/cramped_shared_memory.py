"""Shared memory is too small for the workers of a DataLoader.

## What it finds
Less than 512 MiB free in `/dev/shm`. By default, Docker and Kubernetes give a container 64 MiB.

## Why it matters
Workers pass batches through shared memory. When it is full they are killed: "DataLoader worker is killed by
signal: Bus error". A batch of 256 images of 224 x 224 takes 150 MB, and each worker prefetches two.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import MIB, Machine, is_known

RULE = Meta(
    code="ENV16",
    severity="warning",
    is_observed=is_known,
    fix="Start the container with --shm-size=8g or --ipc=host; in Kubernetes mount an emptyDir with medium: "
    "Memory at /dev/shm.",
)
_LEAST = 512 * MIB


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find too little shared memory."""
    machine: Machine = evidence.machine
    if machine.shm_bytes is None or machine.shm_free_bytes is None or machine.shm_free_bytes >= _LEAST:
        return
    is_full = machine.shm_bytes >= 2 * _LEAST
    sizes = f"{machine.shm_free_bytes // MIB} of {machine.shm_bytes // MIB} MiB are free in /dev/shm"
    if is_full:
        yield Finding(
            message="shared memory is almost full: workers of a DataLoader need it",
            evidence=sizes,
            fix="Remove files of ended processes from /dev/shm (ls -la /dev/shm).",
        )
    else:
        yield Finding(message="shared memory is too small for the workers of a DataLoader", evidence=sizes)
