"""A CPU-only build of torch is installed on a machine with a GPU.

## What it finds
A driver that sees NVIDIA GPUs, and a build of torch without CUDA.

## Why it matters
`torch.cuda.is_available()` is false and nothing shows why. Scripts that choose the device by availability
train on the CPU. The cause is the wrong index (`.../whl/cpu`), an environment copied from another machine, or
a package that replaced the build.

## How to fix
Install a build with CUDA. If you want the CPU, suppress this rule: `ignore = ["cpu-build"]` under
`[tool.truestep.check]` in `pyproject.toml`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known
from truestep.rules.env._versions import major

RULE = Meta(
    code="ENV05",
    severity="warning",
    is_observed=is_known,
    fix="Install a build of torch with CUDA. Find the command on https://pytorch.org/get-started/locally.",
)
_BUILD_FOR = {12: "cu126", 13: "cu130"}


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a CPU build beside cards."""
    machine: Machine = evidence.machine
    if machine.torch is None or machine.build_cuda or machine.build_hip or not machine.gpus:
        return
    build = _BUILD_FOR.get(major(machine.driver_cuda))
    install = "pip install --force-reinstall torch --index-url"
    yield Finding(
        message="this build of torch cannot use the machine's GPU",
        evidence=f"torch {machine.torch} is a CPU-only build; driver {machine.driver} sees {machine.gpus[0]}",
        fix=f"Install a build that the driver supports: {install} https://download.pytorch.org/whl/{build}."
        if build
        else None,
    )
