"""What the doctor knows of a machine, and what makes a rule of a function about it.

Owns the facts' names. How they are found out is in `truestep.doctor.survey`.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from truestep.rules.evidence import Evidence
from truestep.rules.rule import Finding, Meta, Rule, Severity, documented

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Device:
    """An accelerator as torch sees it."""

    name: str
    capability: str | None = None
    """As `8.6`; only CUDA has it."""
    error: str | None = None
    """What adding two numbers on it failed with."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a package says that it needs."""

    owner: str
    name: str
    wanted: str
    """As its metadata has it: `>=2.0,<3`."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine and what is installed on it. None: not there, or not found out."""

    platform: str = "linux"
    processor: str = "x86_64"
    python: str = "3.12.3"

    torch: str | None = None
    torch_error: str | None = None
    """What importing it failed with."""
    build_cuda: str | None = None
    """What torch was built with; None for a CPU build."""
    build_hip: str | None = None
    archs: tuple[str, ...] = ()
    """What the build has kernels for: `sm_90`; `compute_90` is code that is translated when it is loaded."""
    is_cuda_available: bool = False
    cuda_error: str | None = None
    """What starting CUDA failed with."""
    cudnn: int | None = None
    devices: tuple[Device, ...] = ()

    driver: str | None = None
    driver_cuda: str | None = None
    """The highest CUDA that the driver runs."""
    driver_error: str | None = None
    """What `nvidia-smi` said instead of an answer."""
    gpus: tuple[str, ...] = ()
    """The GPUs that the driver sees, hidden ones too."""
    num_pci_gpus: int = 0
    """GPUs of NVIDIA's on the bus, with a driver or without one."""
    toolkit: str | None = None
    """The release of `nvcc`."""

    packages: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[Need, ...] = ()

    num_cores: int = 1
    num_usable_cores: int = 1
    """Those that this process may run on."""
    cpu_quota: float | None = None
    """The cores' worth of time that the container is given."""
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    threads: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_granted_cores(self) -> int:
        """The cores that it can really use: a quota is rounded up."""
        if self.cpu_quota is None:
            return self.num_usable_cores
        return max(1, min(self.num_usable_cores, -int(-self.cpu_quota // 1)))

    @property
    def num_visible_gpus(self) -> int:
        """How many GPUs CUDA_VISIBLE_DEVICES leaves: those up to the first that is not there."""
        text = self.variables.get("CUDA_VISIBLE_DEVICES")
        if text is None:
            return len(self.gpus)
        seen: list[str] = []
        for name in map(str.strip, text.split(",")):
            is_number = name.lstrip("-").isdigit()
            if not name or name in seen or (is_number and not 0 <= int(name) < len(self.gpus)):
                break
            seen.append(name)
        return len(seen)


def is_known(evidence: Evidence) -> bool:
    """Whether there is a machine to look at: a script's evidence has none."""
    return evidence.machine is not None


def machine_rule(
    code: str, severity: Severity, *, fix: str, caused_by: tuple[str, ...] = ()
) -> Callable[[Callable[[Machine], Iterator[Finding]]], Rule]:
    """Return the rule that a function is: its name with dashes, its docstring the documentation."""
    meta = Meta(code=code, severity=severity, fix=fix, caused_by=caused_by, is_observed=is_known)

    def made(find: Callable[[Machine], Iterator[Finding]]) -> Rule:
        return Rule(
            name=find.__name__.replace("_", "-"),
            meta=meta,
            check=lambda evidence: find(evidence.machine),
            document=documented(inspect.getdoc(find) or "", fix),
            is_observed=is_known,
        )

    return made


def advice(text: str, by_sign: Mapping[str, str]) -> str | None:
    """Return the advice for the first sign that is in an error message."""
    return next((words for sign, words in by_sign.items() if sign in text), None)


def major(version: str | None) -> int:
    """Return the first number of a version, of a package's or a driver's; 0 if it has none."""
    found = re.match(r"v?(\d+)", version or "")
    return int(found[1]) if found else 0


def does_satisfy(version: str, wanted: str) -> bool:
    """Whether a version is one that a requirement allows. Early versions count as the final ones."""
    try:
        return Version(version).base_version in SpecifierSet(wanted)
    except (InvalidVersion, InvalidSpecifier):
        return True  # what cannot be read is never held against a machine
