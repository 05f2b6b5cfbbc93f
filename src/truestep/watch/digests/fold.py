"""Digests for chains: fast, and sensitive to the place of every bit.

Owns how a tensor becomes a few bytes where it lies. Small ones are hashed whole. Large ones are multiplied,
as 64-bit integers that wrap around, by fixed odd weights, a row of 8 kB giving one number; those are hashed.
`torch.hash_tensor` is as fast and sees neither order nor two equal changes in one row: used on devices only.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from truestep.watch.script.nested_tensors import Leaf, walk, without_modes

VERSION = 1
_SMALL_BYTES = 16_384
_ROW = 1024
_weights: list[Tensor] = []


def fold(named: Iterable[tuple[str, Leaf]]) -> str:
    """Return one digest over names, shapes, dtypes and bits, in the order given.

    A sharded tensor gives its part: other processes are asked nothing. Modes that are on are passed by.
    """
    with without_modes() if torch._C._len_torch_dispatch_stack() else torch._C.DisableTorchFunction():
        return _fold(named)


def _fold(named: Iterable[tuple[str, Leaf]]) -> str:
    hashed = hashlib.sha256()
    for name, leaf in named:
        hashed.update(f"{name}\0".encode())
        if isinstance(leaf, Tensor):
            _add_tensor(hashed, leaf.detach())
        elif isinstance(leaf, bytes):
            hashed.update(leaf)
        else:
            hashed.update(repr(leaf).encode())
    return hashed.hexdigest()[:16]


def fold_nest(value: Any) -> str:
    """Return one digest over all tensors, texts and numbers of a nest."""
    return fold(walk(value))


def _add_tensor(hashed: Any, tensor: Tensor) -> None:
    local = getattr(tensor, "to_local", None)
    if local is not None:
        tensor = local()
    if tensor.is_nested:
        hashed.update(f"nested\0{tensor.dtype}\0{tensor.size(0)}\0".encode())
        for part in tensor.unbind():
            _add_tensor(hashed, part)
        return
    hashed.update(f"{tuple(tensor.shape)}\0{tensor.dtype}\0{tensor.layout}\0".encode())
    if tensor.layout != torch.strided:
        for part in _sparse_parts(tensor):
            _add_tensor(hashed, part)
    elif tensor.device.type == "meta" or tensor.numel() == 0:
        return
    elif tensor.is_quantized:
        for part in (tensor.int_repr(), tensor.dequantize()):
            _add_tensor(hashed, part)
    else:
        _add_bits(hashed, tensor.contiguous())


def _sparse_parts(tensor: Tensor) -> list[Tensor]:
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.to_dense()]


def _add_bits(hashed: Any, tensor: Tensor) -> None:
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_neg().resolve_conj()
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1:  # a single element of a larger tensor counts as contiguous, and cannot be viewed
        flat = flat.as_strided(flat.shape, (1,))
    raw = flat.view(torch.uint8)
    if raw.numel() <= _SMALL_BYTES:
        hashed.update(_shown(raw))
        return
    if raw.data_ptr() % 8 or raw.storage_offset() % 8:
        raw = raw.clone()
    num_rows = raw.numel() // (8 * _ROW)
    rows = raw[: num_rows * 8 * _ROW].view(torch.int64).view(num_rows, _ROW)
    if raw.device.type == "cpu":
        if not _weights:
            _weights.append(_make_weights())
        sums = torch.mv(rows, _weights[0])  # exact: integers that wrap add up alike in any order
    else:
        sums = torch.hash_tensor(rows, dim=1).view(torch.int64)
    hashed.update(sums.cpu().numpy().data)
    hashed.update(_shown(raw[num_rows * 8 * _ROW :]))


def _shown(raw: Tensor) -> memoryview:
    """Return a copy's bytes: what NumPy was shown once cannot be resized any more, and FSDP2 does that."""
    return raw.cpu().clone().numpy().data


def _make_weights() -> Tensor:
    """Fixed odd numbers, drawn from no generator: an odd factor loses no bit."""
    drawn = hashlib.shake_128(b"truestep.watch.digests.fold").digest(8 * _ROW)
    return torch.frombuffer(bytearray(drawn), dtype=torch.int64) | 1
