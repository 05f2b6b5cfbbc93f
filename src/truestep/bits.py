"""Digests: hashes of tensors' exact bits, with names, shapes and dtypes.

Owns what "the same bits" means, and the word for how products are rounded. Leaves to others which tensors are
compared.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy
import torch

_INT64_END = 2**63
_NUMBERS = "biufc"
"""Kinds of NumPy's types that are numbers: bool, whole with and without sign, real, complex."""


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
    """Yield every tensor, array and number in a nested state with its path, sorted within a mapping."""
    if isinstance(state, torch.Tensor):
        yield prefix, state
    elif isinstance(state, Mapping):
        for key in sorted(state, key=str):
            yield from tensors_in(state[key], f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(state, list | tuple):
        for index, item in enumerate(state):
            yield from tensors_in(item, f"{prefix}.{index}" if prefix else str(index))
    elif isinstance(state, numpy.ndarray | numpy.generic) and state.dtype.kind == "O":
        yield from tensors_in(state.tolist(), prefix)
    elif (value := _as_tensor(state)) is not None:
        yield prefix, value


def _as_tensor(value: Any) -> torch.Tensor | None:
    """Return a number or an array of numbers as a tensor, or None for anything else."""
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    if isinstance(value, int):
        if -_INT64_END <= value < _INT64_END:
            return torch.tensor(value, dtype=torch.int64)
        digits = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return torch.tensor([*digits], dtype=torch.uint8)
    if isinstance(value, complex):
        return torch.tensor(value, dtype=torch.complex128)
    if isinstance(value, numpy.ndarray | numpy.generic) and value.dtype.kind in _NUMBERS:
        # A copy: torch takes neither the other byte order nor negative strides, and warns of read-only ones.
        return torch.from_numpy(numpy.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
    return None


def digest_state(state: Any) -> str:
    """Return one hash over all tensors, arrays and numbers of a `state_dict()` or any nest of them."""
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


def matmul_precision() -> str:
    """Return torch's word for how float32 matrix products are rounded, or what each backend has.

    >>> matmul_precision()
    'highest'
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it has no one word once a script has set `fp32_precision`, of whichever backend
        backends: Any = torch.backends
        return f"CUDA {backends.cuda.matmul.fp32_precision}, CPU {backends.mkldnn.matmul.fp32_precision}"
