"""Copies on the host of what is on an accelerator: a forked process cannot use the device.

Owns that the script does not wait for them, and that a forward pass which names the device runs on the host.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from truestep.base.device import copy_late
from truestep.watch.inspect.probe.forked_copy import ApartError
from truestep.watch.script import module_tree
from truestep.watch.script.nested_tensors import find_tensors


def to_host(tensor: Tensor) -> Tensor:
    """Return a copy on the host, of a tensor on a device one that arrives late: see `Arrival`."""
    return tensor.detach().clone() if tensor.is_cpu else copy_late(tensor)


def copy_model(model: nn.Module) -> dict[int, Tensor]:
    """Return copies of all tensors of a model that are not on the CPU, by the id of each."""
    found: dict[int, Tensor] = {}
    for module in model.modules():
        own = [value for name, value in vars(module).items() if name != "_modules"]
        for _, tensor in find_tensors(own):
            if not tensor.is_cpu and id(tensor) not in found:
                copied = to_host(tensor)
                is_parameter = isinstance(tensor, nn.Parameter)
                found[id(tensor)] = nn.Parameter(copied, requires_grad=False) if is_parameter else copied
    return found


def find_devices(model: nn.Module, given: Any) -> set[torch.device]:
    """Return the devices other than the CPU that a model and its inputs are on."""
    inputs = (leaf for _, leaf in find_tensors(given))
    tensors = (*module_tree.parameters(model), *module_tree.buffers(model), *inputs)
    found = {tensor.device for tensor in tensors if not tensor.is_cpu}
    if any(device.type == "meta" for device in found):
        raise ApartError("not made on the meta device, which has no values")
    return found


class OnHost(TorchFunctionMode):
    """Lets a forward pass that names a device run on the CPU: `torch.arange(n, device="cuda")`.

    For use in a copy of the process alone.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        super().__init__()
        self._kinds = {device.type for device in devices}
        torch.set_default_device(None)  # this process is a copy, and ends after the probe

    def __torch_function__(  # limits: torch calls it like this
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in self._kinds and args:  # tensor.cuda()
            return args[0]
        given = {name: self._on_cpu(value) for name, value in (kwargs or {}).items()}
        return func(*map(self._on_cpu, args), **given)

    def _on_cpu(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type in self._kinds else value
        if isinstance(value, str) and value.partition(":")[0] in self._kinds:
            return "cpu"
        return value
