"""What the objects of training hold in memory: parameters with buffers, gradients, state of optimizers.

Owns which memory belongs to which of them, each counted once, and how large a state will be that an optimizer
has not made yet. What else is held, by which line, is up to those who ask.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.script import parts
from truestep.watch.script.leaves import walk

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer state"
_NUM_STATES: dict[str, Callable[[dict[str, Any]], float]] = {
    "SGD": lambda group: bool(group["momentum"]),
    "Adam": lambda group: 2 + bool(group["amsgrad"]),
    "AdamW": lambda group: 2 + bool(group["amsgrad"]),
    "NAdam": lambda _: 2,
    "RAdam": lambda _: 2,
    "Adamax": lambda _: 2,
    "Adadelta": lambda _: 2,
    "Adagrad": lambda _: 1,
    "ASGD": lambda _: 1,
    "Rprop": lambda _: 2,
    "RMSprop": lambda group: 1 + bool(group["centered"]) + bool(group["momentum"]),
    "Muon": lambda _: 1,
    "LBFGS": lambda group: 2 * group["history_size"] + 2,
}
"""For torch's own optimizers: how many tensors of its size each parameter gets sooner or later."""
_NUM_WORKING = {"SGD": 0, "Adagrad": 2, "Adadelta": 2, "Rprop": 2, "Muon": 2, "LBFGS": 7}
"""How many more a step takes for a while; 1 for the others, and one more for another gradient."""
_NUM_IN_CLOSURE = {"LBFGS": 2}
"""How many more a step holds while its closure runs the passes: the last gradient and direction."""
_DECOUPLED = ("AdamW", "Muon", "Adafactor")
"""Those that take weight decay from the weights, not through another gradient."""
_ONE_BY_ONE = ("Adafactor", "Muon")
_WITHOUT_FOREACH = ("cpu", "meta", "mps")


class Memory(NamedTuple):
    """A piece of memory."""

    device: str
    num_bytes: int


Pieces = dict[int, Memory]
"""By address."""


def held_by_objects(models: Collection[nn.Module], optimizers: Iterable[Optimizer]) -> dict[str, Pieces]:
    """Return the memory of parameters and buffers, of gradients and of optimizers' state, by address."""
    optimizers = list(optimizers)
    parameters: list[Tensor] = [item for model in models for item in parts.parameters(model)]
    parameters += [item for optimizer in optimizers for item in parameters_of(optimizer)]
    buffers = [item for model in models for item in parts.buffers(model)]
    found = {
        PARAMETERS: memory_of([*parameters, *buffers]),
        GRADIENTS: memory_of([item.grad for item in parameters if item.grad is not None]),
        STATE: state_of(*optimizers),
    }
    for earlier, later in ((PARAMETERS, GRADIENTS), (PARAMETERS, STATE), (GRADIENTS, STATE)):
        found[later] = {key: item for key, item in found[later].items() if key not in found[earlier]}
    return found


def state_of(*optimizers: Optimizer) -> Pieces:
    """Return the memory of the state that optimizers have."""
    leaves = walk([list(optimizer.state.values()) for optimizer in optimizers])
    return memory_of(leaf for _, leaf in leaves if isinstance(leaf, Tensor))


def memory_of(tensors: Iterable[Tensor]) -> Pieces:
    """Return the memory of tensors by its address; none for those that have no memory of their own."""
    found = {}
    for tensor in tensors:
        try:
            # That of a sharded one is its local part.
            storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
            if storage.data_ptr():
                found[storage.data_ptr()] = Memory(storage.device.type, storage.nbytes())
        except (NotImplementedError, RuntimeError, ValueError):  # lazy, or a subclass without memory
            continue
    return found


def expected_state_bytes(optimizer: Optimizer, device: torch.device | None = None) -> int | None:
    """Return how large an optimizer's state will be; None if that is not known.

    With a device only what has a gradient there counts: parameters without one get no state.
    """
    kind = _torchs_kind(optimizer)
    num_states = _NUM_STATES.get(kind)
    if num_states is None and kind != "Adafactor":
        return None
    return sum(
        _factored_bytes(item) if num_states is None else int(num_states(group) * _bytes(item))
        for group in optimizer.param_groups
        for item in group["params"]
        if (item.requires_grad if device is None else _has_gradient(item, device))
    )


def expected_working_bytes(optimizer: Optimizer, device: torch.device) -> int:
    """Return what an optimizer of torch's takes on a device in a step for a while; 0 for others.

    With `foreach` it has results for all parameters of a group at once, otherwise for one at a time.
    """
    kind, most = _torchs_kind(optimizer), 0
    for group in optimizer.param_groups if kind else ():
        sizes = [_bytes(item) for item in group["params"] if _has_gradient(item, device)]
        has_other = kind not in _DECOUPLED and bool(group.get("weight_decay") or group.get("maximize"))
        num = _NUM_WORKING.get(kind, 1) + has_other
        if sizes and not group.get("fused"):
            most = max(most, num * (sum(sizes) if _is_at_once(kind, group) else max(sizes)))
    return most


def expected_closure_bytes(optimizer: Optimizer, device: torch.device) -> int:
    """Return what an optimizer of torch's holds on a device while its closure runs; 0 for others."""
    return _NUM_IN_CLOSURE.get(_torchs_kind(optimizer), 0) * gradients_bytes(optimizer, device)


def gradients_bytes(optimizer: Optimizer, device: torch.device) -> int:
    """Return how much the gradients on a device take."""
    return sum(_bytes(item) for item in parameters_of(optimizer) if _has_gradient(item, device))


def trainable_bytes(optimizers: Iterable[Optimizer]) -> int:
    """Return how much the gradients of all that is optimized take."""
    every = {id(item): item for optimizer in optimizers for item in parameters_of(optimizer)}
    return sum(_bytes(item) for item in every.values() if item.requires_grad)


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return what it optimizes."""
    return [item for group in optimizer.param_groups for item in group["params"]]


def _has_gradient(tensor: Tensor, device: torch.device) -> bool:
    return tensor.grad is not None and tensor.grad.device == device


def _bytes(tensor: Tensor) -> int:
    if nn.parameter.is_lazy(tensor):
        return 0
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.numel() * local.element_size()


def _torchs_kind(optimizer: Optimizer) -> str:
    """Return the name of one of torch's own classes; nothing for others."""
    kind = type(optimizer)
    return kind.__name__ if f"{kind.__module__}.".startswith("torch.optim.") else ""


def _is_at_once(kind: str, group: dict[str, Any]) -> bool:
    chosen = group.get("foreach")
    if chosen is None and kind not in _ONE_BY_ONE:
        return kind == "LBFGS" or all(item.device.type not in _WITHOUT_FOREACH for item in group["params"])
    return bool(chosen)


def _factored_bytes(tensor: Tensor) -> int:
    """Return the size of a row and a column instead of a matrix."""
    if tensor.dim() < 2:
        return _bytes(tensor)
    return _bytes(tensor) // tensor.shape[-1] + _bytes(tensor) // tensor.shape[-2] if tensor.numel() else 0
