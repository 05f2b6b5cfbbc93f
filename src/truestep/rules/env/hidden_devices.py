"""CUDA_VISIBLE_DEVICES excludes the machine's GPUs.

## What it finds
A value that excludes every GPU (`-1`, or empty), or that names one that does not exist: CUDA then ignores
that number and all that follow it.

## Why it matters
Training falls back to the CPU, or runs on fewer GPUs than you asked for, without an error. The variable often
comes from another machine, a notebook or a job script.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known

RULE = Meta(
    code="ENV07",
    severity="warning",
    is_observed=is_known,
    fix="Unset CUDA_VISIBLE_DEVICES, or set it to numbers that nvidia-smi -L lists, before Python starts.",
)
_NAME = "CUDA_VISIBLE_DEVICES"


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a value that hides cards."""
    machine: Machine = evidence.machine
    text = machine.variables.get(_NAME)
    if text is None or not machine.gpus or machine.build_cuda is None:
        return
    num_visible, num_gpus = machine.num_visible_gpus, len(machine.gpus)
    if num_visible == len(text.split(",")):
        return
    there = f"the machine has {num_gpus}, numbered from 0"
    yield Finding(
        message=f"{_NAME} excludes {'every GPU' if not num_visible else 'GPUs that were asked for'}",
        evidence=f"it is {text!r}, which leaves {num_visible} visible; {there}",
    )
