"""States as strict JSON and named tensors, and back, exactly: what `state_dict()` returns, without pickling.

Owns which types a state may hold and how each is written down. Leaves files to `tensorfile` and `snapshot`.
"""

import base64
import contextlib
import math
import struct
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy
import torch

from truestep.base.bits import put_together, take_apart
from truestep.base.device import is_copied_late
from truestep.errors import StateError
from truestep.run.checkpoint import tensorfile
from truestep.run.checkpoint.chunks import Stored
from truestep.run.checkpoint.parts import Box, Part, Path, Target, box_of, is_dtensor, part_of, spread_like

_Copy: TypeAlias = "tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]"
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

_MAX_DEPTH = 100
_MANY_ELEMENTS = 32768  # from here on torch copies with several threads
_PIECE_BYTES = 2 << 20  # of a copy that several threads share: a thread that gets no core delays it by one
_MAX_THREADS = 8  # they fill the memory's bandwidth
_MAX_JSON_INT = 2**53  # beyond it other JSON readers round
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
_BASES = (dict, list, tuple, set, frozenset, bool, int, float, str, bytes)
_SCALAR_KINDS = "biufcmM"
_ARRAY_KINDS = _SCALAR_KINDS + "US"


class Packed(NamedTuple):
    """A state as strict JSON and the tensors that it names (not copied yet).

    Where a tensor is spread over processes, `tensors` holds the local part, and `parts` says what it is of.
    """

    structure: Json
    tensors: dict[str, torch.Tensor]
    parts: dict[str, Part]


def pack(state: Any) -> Packed:
    """Return the structure of a nested state and its tensors by name; tensors of the same memory once.

    >>> pack({"step": 3, "betas": (0.9, 0.99)}).structure["items"]
    [['step', 3], ['betas', {'type': 'tuple', 'items': [0.9, 0.99]}]]
    """
    packer = _Packer()
    return Packed(packer.node(state, "", 0), packer.tensors, packer.parts)


def unpack(
    structure: Json, tensors: Mapping[str, torch.Tensor | Stored], *, target: Target | None = None
) -> Any:
    """Return the state that `pack` was given, with all tensors in fresh CPU memory.

    Where `target` names a DTensor, only this process's part is read, and comes spread like that one.
    A structure that `pack` cannot have made raises ValueError, KeyError or TypeError.
    """
    loader = _Loader(tensors, target)
    return _Unpacker(loader.leaf, loader.raw).build(structure)


def copy(state: Any, *, into: Any = None) -> Any:
    """Return a deep copy with every tensor in CPU memory of its own, aliases copied once.

    A DTensor that is spread over processes becomes a `Part`, which `pack` takes like the DTensor.
    `into` is an earlier copy that nobody needs any more: its tensors are overwritten where they fit, which
    saves the page faults of fresh memory (most of the time of a copy). From an accelerator the copies go
    to pinned memory without blocking, then there is one wait per device.
    """
    packed = pack(state)
    spare = {} if into is None else pack(into).tensors
    copier = _Copier(packed, spare)
    copied = _Unpacker(copier.leaf, packed.tensors.__getitem__).build(packed.structure)
    _copy_memory(copier.later)
    for device in {tensor.device for tensor in packed.tensors.values() if is_copied_late(tensor)}:
        torch.accelerator.current_stream(device).synchronize()
    return copied


class _Packer:
    """Walks a state once; remembers which memory has a name already."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.parts: dict[str, Part] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self._boxes: dict[Any, Box] = {}

    def node(self, value: Any, path: str, depth: int) -> Json:
        if depth > _MAX_DEPTH:
            raise StateError(f"{path[:80]}... is nested more than {_MAX_DEPTH} deep, or contains itself.")
        kind = type(value)
        if kind in (dict, OrderedDict, Counter):
            return self._mapping(value, path, depth)
        if kind in (list, tuple, deque):
            return self._sequence(value, path, depth)
        if isinstance(value, torch.Tensor | Part):
            held = part_of(value, path, boxes=self._boxes) if is_dtensor(value) else value
            return self._part(held, path) if isinstance(held, Part) else self._tensor(held, path, depth)
        if kind is numpy.ndarray:
            return self._array(value, path)
        if isinstance(value, numpy.generic) and value.dtype.kind in _SCALAR_KINDS:
            return {"type": "scalar", "dtype": value.dtype.str, "hex": value.tobytes().hex()}
        write = _WRITERS.get(kind)
        if write is None:
            raise _unstorable(value, path, "it cannot be stored without pickling")
        return write(value)

    def _sequence(self, value: Any, path: str, depth: int) -> Json:
        items = [self.node(item, _join(path, index), depth + 1) for index, item in enumerate(value)]
        if type(value) is list:
            return items
        if type(value) is tuple:
            return {"type": "tuple", "items": items}
        return {"type": "deque", "items": items, "maxlen": value.maxlen}

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
            return {"type": "dict" if type(value) is dict else "ordered", "items": items}
        noted = self.node(metadata, _join(path, "_metadata"), depth + 1)
        return {"type": "state_dict", "items": items, "metadata": noted}

    def _tensor(self, value: torch.Tensor, path: str, depth: int) -> Json:
        pieces = take_apart(value) if type(value) in _PLAIN_CLASSES else None
        if pieces is not None:
            return {"type": "pieces", "of": self.node(pieces, path, depth + 1)}
        stored = _carrier(value, path)
        node: dict[str, Json] = {"type": "tensor", "key": self._name(value, stored, path)}
        if stored.dtype != value.dtype:
            node["dtype"] = _dtype_name(value.dtype)
        _note_stride(node, stored.shape, stored.stride())
        return node

    def _part(self, part: Part, path: str) -> Json:
        stored = _carrier(part.local, path)
        whole = (part.offsets, part.shape, part.stride)
        key = self._name(part.local, stored, path, whole)
        self.parts[key] = part
        node: dict[str, Json] = {"type": "tensor", "key": key}
        if stored.dtype != part.local.dtype:
            node["dtype"] = _dtype_name(part.local.dtype)
        else:  # complex numbers have one dimension more on disk, and their rare layouts are not worth a rule
            _note_stride(node, torch.Size(part.shape), part.stride)
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

    def _name(
        self, value: torch.Tensor | None, stored: torch.Tensor, path: str, whole: tuple[Any, ...] = ()
    ) -> str:
        """Return the name under which this memory is stored; the path that meets it first gives the name."""
        memory = None
        if value is not None and value.numel():
            where = (value.device, value.untyped_storage().data_ptr(), value.storage_offset())
            flags = (value.is_conj(), value.is_neg())
            memory = (*where, *flags, value.dtype, tuple(value.shape), value.stride(), *whole)
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
    """Builds a state again from its structure; tensors are made by the function it is given."""

    def __init__(
        self, leaf: Callable[[Any, Path], torch.Tensor | Part], raw: Callable[[str], torch.Tensor]
    ) -> None:
        self._leaf = leaf
        self._raw = raw
        self._readers: dict[str, Callable[[Any, Path], Any]] = {
            "dict": self._items,
            "ordered": lambda node, path: OrderedDict(self._items(node, path)),
            "counter": lambda node, path: Counter(self._items(node, path)),
            "state_dict": self._state_dict,
            "tuple": lambda node, path: tuple(self._list(node["items"], path)),
            "deque": lambda node, path: deque(self._list(node["items"], path), node["maxlen"]),
            "tensor": leaf,
            "array": self._array,
            "pieces": lambda node, path: put_together(self.value(node["of"], path)),
        }

    def build(self, structure: Json) -> Any:
        # A tensor made in inference mode could not be written to when training goes on.
        with torch.inference_mode(False), torch.no_grad():
            return self.value(structure, ())

    def value(self, node: Any, path: Path) -> Any:
        if isinstance(node, list):
            return self._list(node, path)
        if isinstance(node, dict):
            kind = node["type"]
            return _READERS[kind](node) if kind in _READERS else self._readers[kind](node, path)
        return node

    def _list(self, items: list[Any], path: Path) -> list[Any]:
        return [self.value(item, (*path, index)) for index, item in enumerate(items)]

    def _items(self, node: Any, path: Path) -> dict[Any, Any]:
        keyed = [(self.value(key, path), item) for key, item in node["items"]]
        return {key: self.value(item, (*path, key)) for key, item in keyed}

    def _state_dict(self, node: Any, path: Path) -> Any:
        state = OrderedDict(self._items(node, path))
        vars(state)["_metadata"] = self.value(node["metadata"], (*path, "_metadata"))
        return state

    def _array(self, node: Any, path: Path) -> "numpy.ndarray[Any, Any]":  # noqa: ARG002 - as all readers
        dtype = _plain_dtype(node["dtype"], _ARRAY_KINDS)
        array = numpy.empty(node["shape"], dtype, order=node["order"])
        if array.nbytes:
            raw = self._raw(node["key"]).numpy().data
            array[...] = numpy.ndarray(node["shape"], dtype, buffer=raw, order=node["order"])
        return array


class _Copier:
    """Copies each tensor of a packed state once, however many places name it."""

    def __init__(self, packed: Packed, spare: Mapping[str, torch.Tensor]) -> None:
        self._packed = packed
        self._spare = spare
        self._done: dict[str, torch.Tensor | Part] = {}
        self.later: list[_Copy] = []
        """What is still to be copied, in one go: see `_copy_memory`."""

    def leaf(self, node: Any, path: Path) -> torch.Tensor | Part:  # noqa: ARG002 - as a loader's
        key = node["key"]
        if key not in self._done:
            stored = self._packed.tensors[key]
            part = self._packed.parts.get(key)
            stride = _contiguous_stride(stored.shape) if part else _stride_in(node, stored.shape)
            target = _copy_to_cpu(stored, stride, self._spare.get(key), later=self.later)
            fresh = _uncarried(target, node)
            self._done[key] = replace(part, local=fresh) if part else fresh
        return self._done[key]


class _Loader:
    """Reads each tensor once for every way it is wanted, however many places name it."""

    def __init__(self, tensors: Mapping[str, torch.Tensor | Stored], target: Target | None) -> None:
        self._tensors = tensors
        self._target = target
        self._done: dict[Any, torch.Tensor] = {}

    def leaf(self, node: Any, path: Path) -> torch.Tensor:
        key = node["key"]
        shape = self._tensors[key].shape
        is_complex = "dtype" in node and _dtype(node["dtype"]).is_complex
        shown = tuple(shape[:-1] if is_complex else shape)
        target = self._target(path, shown) if self._target is not None else None
        wanted = key if target is None else (key, target.device_mesh, target.placements)
        if wanted not in self._done:
            if target is None:
                box = Box((0,) * len(shape), tuple(shape))
                fresh = _uncarried(self._read(key, box, _stride_in(node, shape)), node)
            else:
                fresh = self._spread(node, target, shown)
            self._done[wanted] = fresh
        return self._done[wanted]

    def raw(self, key: str) -> torch.Tensor:
        tensor = self._tensors[key]
        return tensor.whole() if isinstance(tensor, Stored) else tensor

    def _spread(self, node: Any, target: Any, shape: tuple[int, ...]) -> torch.Tensor:
        if tuple(target.shape) != shape:
            raise StateError(f"{node['key']} was saved with shape {shape}, {tuple(target.shape)} is wanted.")
        box = box_of(target)
        carried = tuple(self._tensors[node["key"]].shape[len(shape) :])
        box = Box(box.offsets + (0,) * len(carried), box.sizes + carried)
        local, sizes = target.to_local(), torch.Size(box.sizes)
        # bits: as in _note_stride; the layout is that of the tensor that this one replaces.
        is_dense = not carried and _is_dense(sizes, local.stride())
        stride = local.stride() if is_dense else _contiguous_stride(sizes)
        return spread_like(target, _uncarried(self._read(node["key"], box, stride), node))

    def _read(self, key: str, box: Box, stride: tuple[int, ...]) -> torch.Tensor:
        stored = self._tensors[key]
        if not isinstance(stored, Stored):
            whole = Box((0,) * stored.dim(), tuple(stored.shape))
            return _copy_to_cpu(stored[box.within(whole)], stride)
        found = stored.view(box)
        if found is not None:
            return _copy_to_cpu(found, stride)
        return stored.fill(_empty(torch.Size(box.sizes), stride, stored.dtype), box)


def _carrier(value: torch.Tensor, path: str) -> torch.Tensor:
    """Return the tensor as one that a safetensors file can hold, without copying it if possible."""
    if type(value) not in _PLAIN_CLASSES:
        raise _unstorable(value, path, "tensors of a subclass cannot be stored. Unwrap it")
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


def _uncarried(stored: torch.Tensor, node: Any) -> torch.Tensor:
    if "dtype" not in node:
        return stored
    dtype = _dtype(node["dtype"])
    return torch.view_as_complex(stored) if dtype.is_complex else stored.view(dtype)


def _copy_to_cpu(
    stored: torch.Tensor,
    stride: tuple[int, ...],
    spare: torch.Tensor | None = None,
    *,
    later: "list[_Copy] | None" = None,
) -> torch.Tensor:
    wanted = (stored.shape, stride, stored.dtype)
    if spare is not None and (spare.shape, spare.stride(), spare.dtype) == wanted:
        target = spare
    else:
        target = _empty(stored.shape, stride, stored.dtype, pin_memory=is_copied_late(stored))
    if stored.device.type == "cpu" and stored.stride() == stride and stored.numel() >= _MANY_ELEMENTS:
        # torch's own copy has all its threads meet after every tensor; where loader workers or other programs
        # want the cores too, that took up to ten times as long as one thread alone.
        copies = [(_memory(target), _memory(stored))]
        if later is None:
            _copy_memory(copies)
        else:
            later += copies
        return target
    return target.copy_(stored, non_blocking=is_copied_late(stored))


def _copy_memory(copies: "list[_Copy]") -> None:
    """Copy blocks of memory with the threads that torch may use.

    Each takes the next small piece when it is done with one, so that one without a core holds up nobody.
    """
    pieces: deque[_Copy] = deque()
    for target, source in copies:
        starts = range(0, target.nbytes, _PIECE_BYTES)
        pieces.extend((target[at : at + _PIECE_BYTES], source[at : at + _PIECE_BYTES]) for at in starts)

    def work() -> None:
        with contextlib.suppress(IndexError):
            while True:
                numpy.copyto(*pieces.popleft())

    num_helpers = min(torch.get_num_threads(), _MAX_THREADS, len(pieces) // 4) - 1
    helpers = [threading.Thread(target=work, name="truestep-copy") for _ in range(num_helpers)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()


def _empty(
    shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, *, pin_memory: bool = False
) -> torch.Tensor:
    # bits: memory of torch's own allocator is aligned like the one that training began with; a tensor
    # mapped from a file is not, and matrix kernels may sum in another order on unaligned memory.
    return torch.empty_strided(shape, stride, dtype=dtype, device="cpu", pin_memory=pin_memory)


def _memory(dense: torch.Tensor) -> "numpy.ndarray[Any, Any]":
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()


def _note_stride(node: dict[str, Json], shape: torch.Size, stride: tuple[int, ...]) -> None:
    # bits: kernels choose their order of sums by the memory layout (channels_last), so it comes back too.
    if stride != _contiguous_stride(shape) and _is_dense(shape, stride):
        node["stride"] = list(stride)


def _stride_in(node: Any, shape: torch.Size) -> tuple[int, ...]:
    stride = tuple(node.get("stride") or _contiguous_stride(shape))
    if "stride" in node and not _is_dense(shape, stride):
        raise ValueError(f"stride {stride} does not lay out a tensor of shape {tuple(shape)}")
    return stride


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
        "A state may hold tensors, arrays, numbers, strings, bytes, None and dicts, lists, tuples and deques "
        "of them."
    )
    base = next((base for base in _BASES if isinstance(value, base)), None)
    if base is not None:
        name = "sorted" if base in (set, frozenset) else base.__name__
        advice += f" Return {name}(...) of it in state_dict(), and make it again in load_state_dict()."
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
