"""The CUDA toolkit has a different version than the CUDA that torch was built with.

## What it finds
`nvcc` of another major version than `torch.version.cuda`.

## Why it matters
Three numbers are called "the CUDA version": the highest that the driver supports (`nvidia-smi`), the
toolkit's (`nvcc -V`), and the one that torch was built with and brings along (`torch.version.cuda`). For
training, only driver and build must match. You need the toolkit only to compile extensions, and torch refuses
another major version for that.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known
from truestep.rules.env._versions import major

RULE = Meta(
    code="ENV08",
    severity="info",
    is_observed=is_known,
    fix="Nothing, unless you compile extensions. Then install the build's toolkit and set CUDA_HOME to it.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a toolkit of another major version."""
    machine: Machine = evidence.machine
    if machine.toolkit and machine.build_cuda and major(machine.toolkit) != major(machine.build_cuda):
        yield Finding(
            message="the toolkit (nvcc) has a different CUDA version than torch: harmless for training",
            evidence=f"nvcc {machine.toolkit}, torch built with {machine.build_cuda}",
            fix=f"Nothing, unless you compile extensions. Then install CUDA {machine.build_cuda} and set "
            "CUDA_HOME to it.",
        )
