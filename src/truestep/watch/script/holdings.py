"""What the objects of training hold in memory: parameters with buffers, gradients, state of optimizers.

Owns which memory belongs to which of them, each counted once. What else is held, by which line, is up to
those who ask.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.script import parts
from truestep.watch.script.leaves import walk

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer state"


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


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return what it optimizes."""
    return [item for group in optimizer.param_groups for item in group["params"]]
