"""States as strict JSON and named tensors, and back, exactly: what `state_dict()` returns, without pickling.

Owns which types a state may hold and how each is written down. Leaves files to `tensorfile` and `snapshot`.
"""

import base64
import math
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy
import torch

from truestep.checkpoint import tensorfile
from truestep.errors import StateError

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

_MAX_DEPTH = 100
_MANY_ELEMENTS = 32768  # from here on torch copies with several threads
_MAX_JSON_INT = 2**53  # beyond it other JSON readers round
_SCALAR_KINDS = "biufcmM"
_ARRAY_KINDS = _SCALAR_KINDS + "US"


class Packed(NamedTuple):
    """A state as strict JSON and the tensors that it names (not copied yet)."""

    structure: Json
    tensors: dict[str, torch.Tensor]


def pack(state: Any) -> Packed:
    """Return the structure of a nested state and its tensors by name; tensors of the same memory once.

    >>> pack({"step": 3, "betas": (0.9, 0.99)}).structure["items"]
    [['step', 3], ['betas', {'type': 'tuple', 'items': [0.9, 0.99]}]]
    """
    packer = _Packer()
    return Packed(packer.node(state, "", 0), packer.tensors)


def unpack(structure: Json, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state that `pack` was given, with all tensors in fresh CPU memory.

    A structure that `pack` cannot have made raises ValueError, KeyError or TypeError.
    """
    return _Unpacker(tensors, {}).build(structure)


def copy(state: Any, *, into: Any = None) -> Any:
    """Return a deep copy with every tensor in CPU memory of its own, aliases copied once.

    `into` is an earlier copy that nobody needs any more: its tensors are overwritten where they fit, which
    saves the page faults of fresh memory (most of the time of a copy). From CUDA the copies go to pinned
    memory without blocking, then one wait per device; that part has not been tested on a GPU yet.
    """
    packed = pack(state)
    spare = {} if into is None else pack(into).tensors
    copied = _Unpacker(packed.tensors, spare).build(packed.structure)
    for device in {tensor.device for tensor in packed.tensors.values() if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return copied


class _Packer:
    """Walks a state once; remembers which memory has a name already."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def node(self, value: Any, path: str, depth: int) -> Json:
        if depth > _MAX_DEPTH:
            raise StateError(f"{path[:80]}... is nested more than {_MAX_DEPTH} deep, or contains itself.")
        kind = type(value)
        if kind in (dict, OrderedDict, defaultdict, Counter):
            return self._mapping(value, path, depth)
        if kind in (list, tuple):
            items = [self.node(item, _join(path, index), depth + 1) for index, item in enumerate(value)]
            return items if kind is list else {"type": "tuple", "items": items}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if kind is numpy.ndarray:
            return self._array(value, path)
        if isinstance(value, numpy.generic) and value.dtype.kind in _SCALAR_KINDS:
            return {"type": "scalar", "dtype": value.dtype.str, "hex": value.tobytes().hex()}
        write = _WRITERS.get(kind)
        if write is None:
            raise _unstorable(value, path, "it cannot be stored without pickling")
        return write(value)

    def _mapping(self, value: dict[Any, Any], path: str, depth: int) -> Json:
        items: list[Json] = []
        for key, item in value.items():
            if type(key) not in (str, int):
                found = f"{path or 'the state'} has the key {key!r} of type {type(key).__name__}"
                raise StateError(f"{found}: keys must be str or int. Change the key in state_dict().")
            items.append([_WRITERS[type(key)](key), self.node(item, _join(path, key), depth + 1)])
        if type(value) is Counter:
            return {"type": "counter", "items": items}
        # bits: modules choose by the versions in here how to read weights; without them some convert again.
        metadata = getattr(value, "_metadata", None)
        if metadata is None:
            return {"type": "dict", "items": items}
        noted = self.node(metadata, _join(path, "_metadata"), depth + 1)
        return {"type": "state_dict", "items": items, "metadata": noted}

    def _tensor(self, value: torch.Tensor, path: str) -> Json:
        stored = _carrier(value, path)
        node: dict[str, Json] = {"type": "tensor", "key": self._name(value, stored, path)}
        if stored.dtype != value.dtype:
            node["dtype"] = _dtype_name(value.dtype)
        # bits: kernels choose their order of sums by the memory layout (channels_last), so it comes back too.
        if stored.stride() != _contiguous_stride(stored.shape) and _is_dense(stored.shape, stored.stride()):
            node["stride"] = list(stored.stride())
        return node

    def _array(self, value: "numpy.ndarray[Any, Any]", path: str) -> Json:
        dtype = value.dtype
        if dtype.kind not in _ARRAY_KINDS or numpy.dtype(dtype.str) != dtype:
            raise _unstorable(value, path, f"an array of {dtype} cannot be stored without pickling")
        is_fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        raw = bytearray(value.tobytes(order="F" if is_fortran else "C"))
        stored = torch.from_numpy(numpy.frombuffer(raw, numpy.uint8))
        key = self._name(None, stored, path)
        order = "F" if is_fortran else "C"
        return {"type": "array", "key": key, "dtype": dtype.str, "shape": list(value.shape), "order": order}

    def _name(self, value: torch.Tensor | None, stored: torch.Tensor, path: str) -> str:
        """Return the name under which this memory is stored; the path that meets it first gives the name."""
        memory = None
        if value is not None and value.numel():
            where = (value.device, value.untyped_storage().data_ptr(), value.storage_offset())
            flags = (value.is_conj(), value.is_neg())
            memory = (*where, *flags, value.dtype, tuple(value.shape), value.stride())
        if memory is not None and memory in self._names:
            return self._names[memory]
        name = wanted = path.encode("utf-8", "backslashreplace").decode()
        count = 1
        while name in self.tensors or name == tensorfile.RESERVED:
            count += 1
            name = f"{wanted}#{count}"
        self.tensors[name] = stored
        if memory is not None:
            self._names[memory] = name
        return name


class _Unpacker:
    """Builds a state again; every stored tensor is copied once, however many places name it."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], spare: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._spare = spare
        self._done: dict[str, torch.Tensor] = {}
        self._readers: dict[str, Callable[[Any], Any]] = {
            "dict": self._items,
            "counter": lambda node: Counter(self._items(node)),
            "state_dict": self._state_dict,
            "tuple": lambda node: tuple(self.value(item) for item in node["items"]),
            "tensor": self._tensor,
            "array": self._array,
            **_READERS,
        }

    def build(self, structure: Json) -> Any:
        # A tensor made in inference mode could not be written to when training goes on.
        with torch.inference_mode(False), torch.no_grad():
            return self.value(structure)

    def value(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.value(item) for item in node]
        if isinstance(node, dict):
            return self._readers[node["type"]](node)
        return node

    def _items(self, node: Any) -> dict[Any, Any]:
        return {self.value(key): self.value(item) for key, item in node["items"]}

    def _state_dict(self, node: Any) -> Any:
        state = OrderedDict(self._items(node))
        vars(state)["_metadata"] = self.value(node["metadata"])
        return state

    def _tensor(self, node: Any) -> torch.Tensor:
        key = node["key"]
        if key not in self._done:
            stored = self._tensors[key]
            stride = tuple(node.get("stride") or _contiguous_stride(stored.shape))
            if "stride" in node and not _is_dense(stored.shape, stride):
                raise ValueError(f"stride {stride} does not lay out a tensor of shape {tuple(stored.shape)}")
            fresh = _copy_to_cpu(stored, stride, self._spare.get(key))
            self._done[key] = _uncarried(fresh, _dtype(node["dtype"])) if "dtype" in node else fresh
        return self._done[key]

    def _array(self, node: Any) -> "numpy.ndarray[Any, Any]":
        dtype = _plain_dtype(node["dtype"], _ARRAY_KINDS)
        array = numpy.empty(node["shape"], dtype, order=node["order"])
        if array.nbytes:
            raw = self._tensors[node["key"]].numpy().data
            array[...] = numpy.ndarray(node["shape"], dtype, buffer=raw, order=node["order"])
        return array


def _carrier(value: torch.Tensor, path: str) -> torch.Tensor:
    """Return the tensor as one that a safetensors file can hold, without copying it if possible."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        reason = (
            "tensors with a class of their own cannot be stored yet. Gather it (full_tensor()) or unwrap it"
        )
        raise _unstorable(value, path, reason)
    if value.layout != torch.strided or value.device.type == "meta":
        kind = f"{value.layout} {value.device.type}"
        raise StateError(
            f"{path} is a {kind} tensor: only dense tensors with data can be stored. Convert it first."
        )
    value = value.detach().resolve_conj().resolve_neg()
    if value.dtype in tensorfile.CODES:
        return value
    if value.dtype.is_complex:
        return torch.view_as_real(value)
    if value.dtype.is_floating_point and value.element_size() == 1:
        return value.view(torch.uint8)
    raise StateError(
        f"{path} has the dtype {value.dtype}, which cannot be stored. Convert it in state_dict()."
    )


def _uncarried(stored: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.view_as_complex(stored) if dtype.is_complex else stored.view(dtype)


def _copy_to_cpu(stored: torch.Tensor, stride: tuple[int, ...], spare: torch.Tensor | None) -> torch.Tensor:
    wanted = (stored.shape, stride, stored.dtype)
    if spare is not None and (spare.shape, spare.stride(), spare.dtype) == wanted:
        target = spare
    else:
        # bits: memory of torch's own allocator is aligned like the one that training began with; a tensor
        # mapped from a file is not, and matrix kernels may sum in another order on unaligned memory.
        memory: dict[str, Any] = {"device": "cpu", "pin_memory": stored.is_cuda}
        target = torch.empty_strided(stored.shape, stride, dtype=stored.dtype, **memory)
    if stored.device.type == "cpu" and stored.stride() == stride and stored.numel() >= _MANY_ELEMENTS:
        # torch's own copy has all its threads meet after every tensor; where loader workers or other programs
        # want the cores too, that took up to ten times as long as one thread alone.
        numpy.copyto(_memory(target), _memory(stored))
        return target
    return target.copy_(stored, non_blocking=stored.is_cuda)


def _memory(dense: torch.Tensor) -> "numpy.ndarray[Any, Any]":
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()


def _contiguous_stride(shape: torch.Size) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def _is_dense(shape: torch.Size, stride: tuple[int, ...]) -> bool:
    """Whether a layout fills one block of memory without holes and without overlap."""
    if len(shape) != len(stride) or min(stride, default=0) < 0 or 0 in shape:
        return False
    step = 1
    for dim_stride, size in sorted((d, s) for s, d in zip(shape, stride, strict=True) if s != 1):
        if dim_stride != step:
            return False
        step *= size
    return True


def _unstorable(value: Any, path: str, reason: str) -> StateError:
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    advice = (
        "A state may hold tensors, arrays, numbers, strings, bytes, None and dicts, lists and tuples of them."
    )
    return StateError(f"{path or 'the state'} is {article} {kind}: {reason}. {advice}")


def _join(path: str, key: str | int) -> str:
    return f"{path}.{key}" if path else str(key)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is not a dtype")
    return dtype


def _plain_dtype(name: str, kinds: str) -> "numpy.dtype[Any]":
    dtype = numpy.dtype(name)
    if dtype.kind not in kinds:
        raise ValueError(f"{name} is not a dtype of plain values")
    return dtype


def _write_int(value: int) -> Json:
    return value if abs(value) <= _MAX_JSON_INT else {"type": "int", "hex": f"{value:x}"}


def _write_float(value: float) -> Json:
    # JSON has no inf and nan, and a nan has a sign and a payload.
    return value if math.isfinite(value) else {"type": "float", "hex": struct.pack(">d", value).hex()}


def _write_str(value: str) -> Json:
    try:
        value.encode()
    except UnicodeEncodeError:  # lone surrogates, from file names that are not UTF-8
        return {"type": "str", "hex": value.encode("utf-8", "surrogatepass").hex()}
    return value


_WRITERS: Mapping[type, Callable[[Any], Json]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: _write_int,
    float: _write_float,
    str: _write_str,
    bytes: lambda value: {"type": "bytes", "base64": base64.b64encode(value).decode()},
    torch.dtype: lambda value: {"type": "dtype", "name": _dtype_name(value)},
    torch.Size: lambda value: {"type": "size", "items": list(value)},
}

_READERS: Mapping[str, Callable[[Any], Any]] = {
    "int": lambda node: int(node["hex"], 16),
    "float": lambda node: struct.unpack(">d", bytes.fromhex(node["hex"]))[0],
    "str": lambda node: bytes.fromhex(node["hex"]).decode("utf-8", "surrogatepass"),
    "bytes": lambda node: base64.b64decode(node["base64"], validate=True),
    "dtype": lambda node: _dtype(node["name"]),
    "size": lambda node: torch.Size(node["items"]),
    "scalar": lambda node: numpy.frombuffer(
        bytes.fromhex(node["hex"]), _plain_dtype(node["dtype"], _SCALAR_KINDS)
    )[0],
}
