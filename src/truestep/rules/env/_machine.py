"""What the doctor knows of a machine, as plain values that can be written down and read again.

Owns the facts' names and a sound machine to compare with. How they are found out is in `survey`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from truestep.errors import UsageError
from truestep.rules.env._versions import Need
from truestep.rules.evidence import Evidence

MIB = 2**20
GIB = 2**30
_FORMER = {"cudnn_error", "quantizers", "max_files_hard"}
"""Facts that 0.1 wrote, which no rule reads any more."""
_TOO_MUCH = 2**63
"""No number about a machine is that large, and arithmetic with larger ones can fail."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """An accelerator as torch sees it."""

    name: str
    capability: str | None = None
    """As `8.6`; only CUDA has it."""
    error: str | None = None
    """What adding two numbers on it failed with."""


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
    numpy_error: str | None = None
    """What turning a tensor into an array failed with."""
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
    max_files: int | None = None
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

    @property
    def torch_release(self) -> str:
        """The version of torch without the name of its build."""
        return (self.torch or "").partition("+")[0]

    def as_fields(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)

    @staticmethod
    def from_fields(values: Mapping[str, Any]) -> "Machine":
        """Return what `as_fields` gave; facts that are left out count as not there."""
        values = {name: value for name, value in values.items() if name not in _FORMER}
        unknown = sorted(set(values) - {item.name for item in fields(Machine)})
        if unknown:
            raise UsageError(
                f"unknown fields: {', '.join(unknown)}. Pass the output of truestep doctor --format json."
            )
        read: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        read["devices"] = tuple(Device(**item) for item in values.get("devices", ()))
        read["needs"] = tuple(Need(**item) for item in values.get("needs", ()))
        machine = Machine(**read)
        for part in (machine, *machine.devices, *machine.needs):
            _check_types(part)
        return machine


def _check_types(part: Any) -> None:
    """Refuse values of another type than their field's: a file from another machine may hold anything."""
    for name, wanted in get_type_hints(type(part)).items():
        value = getattr(part, name)
        options = get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
        if not any(_is_of(value, option) for option in options):
            raise ValueError(f"{name} must be {wanted}, got {str(value)[:40]!r}")


def _is_of(value: Any, wanted: Any) -> bool:
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_of(item, parts[0]) for item in value)
    if origin is Mapping:
        texts = [*value, *value.values()] if isinstance(value, dict) else [None]
        return all(isinstance(text, str) for text in texts)
    if wanted in (int, float):
        return isinstance(value, int | float if wanted is float else int) and abs(value) < _TOO_MUCH
    return isinstance(value, wanted)


def is_known(evidence: Evidence) -> bool:
    """Whether there is a machine to look at: a script's evidence has none."""
    return evidence.machine is not None
