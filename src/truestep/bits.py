"""Digests: hashes of tensors' exact bits, with names, shapes and dtypes.

Owns what "the same bits" means. Leaves to others which tensors are compared.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch


def _raw(tensor: torch.Tensor) -> memoryview:
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    flat = whole.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def digest(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return one hash over the names, shapes, dtypes and bits of the tensors, in the order given.

    A sharded tensor is gathered for it, so all processes that hold parts of it have to ask together.

    >>> zero = torch.zeros(1)
    >>> digest([("a", zero)]) == digest([("a", -zero)])
    False
    """
    hashed = hashlib.sha256()
    for name, tensor in named:
        hashed.update(f"{name}\0{tuple(tensor.shape)}\0{tensor.dtype}\0".encode())
        if tensor.numel():
            hashed.update(_raw(tensor))
    return hashed.hexdigest()[:32]


def tensors_in(state: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor and number in a nested state with its path, sorted by path within a mapping."""
    if isinstance(state, torch.Tensor):
        yield prefix, state
    elif isinstance(state, Mapping):
        for key in sorted(state, key=str):
            yield from tensors_in(state[key], f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(state, list | tuple):
        for index, item in enumerate(state):
            yield from tensors_in(item, f"{prefix}.{index}" if prefix else str(index))
    elif isinstance(state, bool | int | float):
        yield prefix, torch.tensor(state, dtype=torch.float64 if isinstance(state, float) else torch.int64)


def digest_state(state: Any) -> str:
    """Return one hash over all tensors and numbers of a `state_dict()` or any nest of them."""
    return digest(tensors_in(state))


def witness(tensors: Iterable[torch.Tensor]) -> int:
    """Return a fast hash of 64 bits for comparing one computation with itself on another machine.

    `torch.hash_tensor` reduces each tensor where it lives, about ten times faster than `digest`. It sees
    neither the order of elements nor how they are cut into tensors: parts of a sharded one give the same.
    It is a witness of equal kernels, not a checksum of stored data.
    """
    value = 0
    for tensor in tensors:
        if tensor.numel():
            value ^= int(torch.hash_tensor(tensor).item())
    return value
