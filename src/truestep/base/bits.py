"""Digests: hashes of tensors' exact bits, with names, shapes and dtypes.

Owns what "the same bits" means, and the word for how products are rounded. Leaves to others which tensors are
compared.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy
import torch

_INT64_END = 2**63
_NUMBERS = "biufc"
"""Kinds of NumPy's types that are numbers: bool, whole with and without sign, real, complex."""


def _raw(tensor: torch.Tensor) -> memoryview:
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return bytes_of(whole)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the values of a dense tensor as bytes, row after row, whatever its strides and flags are."""
    # Views that torch conjugates or negates when they are read have other bits in memory than they stand for.
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    # One element is contiguous at any stride, but not for the view as bytes.
    flat = plain.contiguous().as_strided((plain.numel(),), (1,))
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
        _add(hashed, name, tensor)
    return hashed.hexdigest()[:32]


def _add(hashed: Any, name: str, tensor: torch.Tensor) -> None:
    hashed.update(f"{name}\0{tuple(tensor.shape)}\0{tensor.dtype}\0".encode())
    pieces = take_apart(tensor)
    if pieces is not None:
        for path, piece in tensors_in(pieces, name):
            _add(hashed, path, piece)
    elif tensor.numel():
        hashed.update(_raw(tensor))


_COMPRESSED: dict[torch.layout, tuple[str, str]] = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def take_apart(tensor: torch.Tensor) -> dict[str, Any] | None:
    """Return what a sparse or quantised tensor consists of, for `put_together`; None for a dense one."""
    tensor = tensor.detach()
    about: dict[str, Any] = {"layout": str(tensor.layout).removeprefix("torch."), "shape": list(tensor.shape)}
    if tensor.layout == torch.sparse_coo:
        # Not indices() and values(): they refuse a tensor that names one place twice.
        parts = {"indices": tensor._indices(), "values": tensor._values()}
        return {**about, **parts, "is_coalesced": tensor.is_coalesced()}
    if tensor.layout in _COMPRESSED:
        outer, inner = _COMPRESSED[tensor.layout]
        parts = {"outer": getattr(tensor, outer)(), "inner": getattr(tensor, inner)()}
        return {**about, **parts, "values": tensor.values()}
    if not tensor.is_quantized:
        return None
    about |= {"layout": "quantised", "values": tensor.int_repr()}
    if tensor.qscheme() == torch.per_tensor_affine:
        return {**about, "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    scales = {"scales": tensor.q_per_channel_scales(), "zero_points": tensor.q_per_channel_zero_points()}
    return {**about, **scales, "axis": tensor.q_per_channel_axis()}


def put_together(pieces: Mapping[str, Any]) -> torch.Tensor:
    """Return the tensor that `take_apart` was given."""
    values: torch.Tensor = pieces["values"]
    if pieces["layout"] == "quantised":
        if "scale" in pieces:
            return torch._make_per_tensor_quantized_tensor(values, pieces["scale"], pieces["zero_point"])
        scales = pieces["scales"], pieces["zero_points"], pieces["axis"]
        return torch._make_per_channel_quantized_tensor(values, *scales)
    # Checked: indices from a file that somebody else wrote must not lead out of the tensor's memory.
    options: dict[str, Any] = {"size": pieces["shape"], "check_invariants": True}
    if pieces["layout"] == "sparse_coo":
        is_coalesced = pieces["is_coalesced"]
        return torch.sparse_coo_tensor(pieces["indices"], values, is_coalesced=is_coalesced, **options)
    layout = next(layout for layout in _COMPRESSED if str(layout) == f"torch.{pieces['layout']}")
    return torch.sparse_compressed_tensor(pieces["outer"], pieces["inner"], values, layout=layout, **options)


def tensors_in(state: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor, array and number in a nested state with its path, sorted within a mapping."""
    if isinstance(state, torch.Tensor):
        yield prefix, state
    elif isinstance(state, Mapping):
        for key in sorted(state, key=str):
            yield from tensors_in(state[key], f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(state, list | tuple | deque):
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


def real_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return complex numbers as pairs of real ones, for operations that know only these."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def witness(tensors: Iterable[torch.Tensor]) -> int:
    """Return a fast hash of 64 bits for comparing one computation with itself on another machine.

    `torch.hash_tensor` reduces each tensor where it lives, about ten times faster than `digest`. It sees
    neither the order of elements nor how they are cut into tensors: parts of a sharded one give the same.
    It is a witness of equal kernels, not a checksum of stored data.
    """
    value = 0
    hashes: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        if not tensor.numel():
            continue
        try:
            hashes.setdefault(tensor.device, []).append(torch.hash_tensor(real_values(tensor)))
        except NotImplementedError:  # sparse and quantised ones, and dtypes like float8
            value ^= int(digest([("", tensor)])[:16], 16)
    for found in hashes.values():  # one wait per device
        for one in torch.stack(found).tolist() if found else []:
            value ^= one
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
