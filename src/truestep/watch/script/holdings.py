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
}
"""For torch's own optimizers: how many tensors of its size each parameter gets in the first step."""


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
    parameters += [item for optimizer in optimizers for item in _parameters_of(optimizer)]
    buffers = [item for model in models for item in parts.buffers(model)]
    states = walk([list(optimizer.state.values()) for optimizer in optimizers])
    state = [leaf for _, leaf in states if isinstance(leaf, Tensor)]
    found = {
        PARAMETERS: memory_of([*parameters, *buffers]),
        GRADIENTS: memory_of([item.grad for item in parameters if item.grad is not None]),
        STATE: memory_of(state),
    }
    for earlier, later in ((PARAMETERS, GRADIENTS), (PARAMETERS, STATE), (GRADIENTS, STATE)):
        found[later] = {key: item for key, item in found[later].items() if key not in found[earlier]}
    return found


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


def expected_state_bytes(optimizer: Optimizer) -> int | None:
    """Return how large an optimizer's state will be after its first step; None if that is not known."""
    kind = type(optimizer)
    num_states = _NUM_STATES.get(kind.__name__)
    if num_states is None or not kind.__module__.startswith("torch.optim."):
        return None
    return sum(
        int(num_states(group) * _bytes(item))
        for group in optimizer.param_groups
        for item in group["params"]
        if item.requires_grad
    )


def trainable_bytes(optimizers: Iterable[Optimizer]) -> int:
    """Return how much the gradients of all that is optimized take."""
    every = {id(item): item for optimizer in optimizers for item in _parameters_of(optimizer)}
    return sum(_bytes(item) for item in every.values() if item.requires_grad)


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [item for group in optimizer.param_groups for item in group["params"]]


def _bytes(tensor: Tensor) -> int:
    if nn.parameter.is_lazy(tensor):
        return 0
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.numel() * local.element_size()
