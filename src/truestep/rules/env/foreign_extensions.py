"""A package contains code compiled for another build of torch.

## What it finds
torchvision or torchaudio with a different build (`+cu126`, `+cpu`) than torch, and torchao with kernels
compiled for another torch.

## Why it matters
The package can be imported but fails during training: "operator torchvision::nms does not exist", or it does
not exist for the CUDA backend. torchao skips its kernels, which is slow, or crashes the process.
"""

import re
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known
from truestep.rules.env._versions import Release, label, release

RULE = Meta(
    code="ENV11",
    severity="warning",
    is_observed=is_known,
    fix="Install it from the index that torch came from, in one command with torch.",
)
_ANY: Release = (99,)
_BUILD = re.compile(r"cu\d+|cpu|rocm[\d.]*|xpu")
"""What a label says of the build; from a source, it is a commit: `git3f2a1bc`."""
_TORCHAO: dict[Release, tuple[Release, Release]] = {
    (0, 13): ((2, 8), (2, 8)),
    (0, 14): ((2, 9), (2, 9)),
    (0, 15): ((2, 8), _ANY),
    (0, 16): ((2, 10), _ANY),
}
"""The first and last torch that its kernels load with, as far as known; before 0.13: up to 2.8.

0.15 may need 2.9, which is not known for certain.
"""
_TABLE = "https://github.com/pytorch/ao/issues/2919"


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find compiled code for another torch."""
    machine: Machine = evidence.machine
    builds, kernels = list(_other_builds(machine)), list(_other_kernels(machine))
    if builds or kernels:
        names = [words.split()[0] for words in (*builds, *kernels)]
        yield Finding(
            message=f"{' and '.join(names)}: compiled for a different build of torch",
            evidence=f"{'; '.join((*builds, *kernels))}; torch is {machine.torch}",
            fix=" ".join(_advice(names, machine)),
        )


def _advice(names: list[str], machine: Machine) -> Iterator[str]:
    together = " ".join(name for name in names if name != "torchao")
    if together:
        index = f"https://download.pytorch.org/whl/{label(machine.torch)}"
        words = f"torch=={machine.torch_release} {together} --index-url {index}"
        yield f"Install together: pip install --force-reinstall {words}."
    if "torchao" in names:
        have = release(machine.torch)[:2]
        versions = [".".join(map(str, key)) for key, (first, _) in _TORCHAO.items() if first == have]
        wanted = f"pip install 'torchao=={versions[0]}.*'" if versions else f"it is in the table at {_TABLE}"
        yield f"Install the torchao for torch {machine.torch_release}: {wanted}."


def _other_builds(machine: Machine) -> Iterator[str]:
    for name in ("torchvision", "torchaudio"):
        version = machine.packages.get(name)
        build, own = label(version), label(machine.torch)
        if _BUILD.fullmatch(build) and _BUILD.fullmatch(own) and build != own:
            yield f"{name} {version} is built for {build}"


def _other_kernels(machine: Machine) -> Iterator[str]:
    version = machine.packages.get("torchao")
    have = release(machine.torch)[:2]
    if version is None or not have:
        return
    key = release(version)[:2]
    first, last = _TORCHAO.get(key, ((0,), (2, 8) if key < min(_TORCHAO) else _ANY))
    if not first <= have <= last:
        bound = ".".join(map(str, first if last == _ANY else last))
        more = "" if first == last else " or newer" if last == _ANY else " or older"
        yield f"torchao {version} has kernels for torch {bound}{more}"
