"""The accelerator of this process, whatever its make.

Owns what `torch.accelerator` cannot tell, and the only lines of training that know a kind of device by name.
"""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

from truestep.base.memory import process_peak_bytes

_WITHOUT_LATE_COPIES = ("cpu", "meta", "mps")


def pick_device(local_rank: int) -> torch.device:
    """Return the device to train on: this process's own accelerator where there is one, else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":  # which has no float64; the record's sums need it
        return torch.device("cpu")
    device = torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device.index)
    return device


def module_in_use() -> ModuleType | None:
    """Return the accelerator's module (`torch.cuda`, ...) if this process has used it. Never starts it."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type == "mps":  # see `pick_device`
        return None
    module: ModuleType = torch.get_device_module(accelerator)
    return module if module.is_initialized() else None


def peak_bytes() -> int:
    """Return the most memory that was in use so far.

    >>> peak_bytes() > 1_000_000
    True
    """
    if module_in_use() is not None:
        return torch.accelerator.max_memory_allocated()
    return process_peak_bytes()


def is_copied_late(tensor: torch.Tensor) -> bool:
    """Whether its copy to the host can be made while the host goes on: into pinned memory."""
    return tensor.device.type not in _WITHOUT_LATE_COPIES


def copy_late(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the host. It is complete when what the device was asked for is done: see `Arrival`."""
    # Not `tensor.to`, which may be observed: the copy is not the script's.
    return torch._C.TensorBase.to(tensor.detach(), "cpu", non_blocking=is_copied_late(tensor))


class Arrival:
    """The end of what some devices were asked for so far."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._ends: list[torch.Event] = []
        for device in devices:
            if device.type not in _WITHOUT_LATE_COPIES:
                end = torch.Event(device)
                end.record(torch.accelerator.current_stream(device))
                self._ends.append(end)

    def has_come(self) -> bool:
        """Whether it is over. Does not wait."""
        return all(end.query() for end in self._ends)

    def wait(self) -> None:
        """Wait until it is over."""
        for end in self._ends:
            if not end.query():
                end.synchronize()


class LateCopy:
    """A tensor's copy on the host, made while the host goes on."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._copy = copy_late(tensor)
        self._arrival = Arrival([tensor.device])

    def has_arrived(self) -> bool:
        """Whether `wait` would not wait."""
        return self._arrival.has_come()

    def wait(self) -> torch.Tensor:
        """Return the copy when it is complete."""
        self._arrival.wait()
        return self._copy


def pinned_variables() -> dict[str, str]:
    """Return the environment variables without which an accelerator's kernels may give other bits."""
    return {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if torch.cuda.is_available() else {}


def describe(device: torch.device) -> dict[str, Any]:
    """Return what the bits depend on that belongs to the device: its name and its libraries' versions."""
    module = torch.get_device_module(device)
    facts = {"device": module.get_device_name(device) if hasattr(module, "get_device_name") else device.type}
    if device.type == "cuda":
        facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return facts
