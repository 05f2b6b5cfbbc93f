"""Traces: what is kept of an operation and its tensors: digests, who wrote their memory last, values.

Owns what counts as read, written and drawn, by the operation's schema and by the memory that tensors share,
and the rows on file. Reading them back is left to `evidence`.
"""

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from truestep.base.device import module_in_use
from truestep.watch.digests.fold import fold
from truestep.watch.evidence.operation import In, Out, stride_of
from truestep.watch.evidence.process import values_path
from truestep.watch.script.nested_tensors import is_readable

_LARGE_BYTES, _MAX_NEW_BYTES = 1 << 22, 1 << 24
_MAX_TEXT, _KEPT_TEXT = 160, 140
_MIN_SWEPT = 4096
_MAX_VALUES_BYTES = 512 * 1024 * 1024
_HELD_BYTES = 1 << 20
_PASSED_BY = {"profiler", "prim", "prims", "_dynamo", "inductor"}
_LATER = {"c10d", "_c10d_functional", "_c10d_functional_autograd"}
_BOTH_WAYS = {"allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "send"}
_UNINITIALISED = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    *("resize", "resize_", "resize_as_", "_resize_output_"),
}
_TAKING_IN = {"lift_fresh", "set_"}
_OVERWRITING = {
    *("copy_", "fill_", "zero_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_"),
    *("log_normal_", "cauchy_", "geometric_", "_foreach_copy_", "_foreach_zero_"),
}
_PLAIN_TYPES = (int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
_NAMES: dict[torch.dtype, str] = {}
_KEPT_DTYPES = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
}


class Given(NamedTuple):
    """A tensor among the arguments."""

    tensor: Tensor
    memory: int
    """The address of what describes its memory."""
    is_written: bool
    is_read: bool

    @classmethod
    def read_only(cls, values: Iterable[Any]) -> "list[Given]":
        """Return the tensors among some values."""
        return [cls(item, memory_of(item), False, True) for item in tensors_in(values)]


@dataclass(frozen=True, kw_only=True)
class OperationSchema:
    """What an operation's schema says of all its calls."""

    name: str
    written: frozenset[int | str]
    """Arguments that are changed, by place and by name."""
    overwritten: frozenset[int | str]
    """Those of them whose value before does not matter."""
    may_draw: bool
    takes_generator: bool
    is_uninitialised: bool
    is_view: bool
    """Whether it reads no memory. One that takes in what Python has made does, though it copies nothing."""
    is_later: bool
    """Whether its results come later, as a collective's do."""
    is_blind: bool
    """Whether what it is given is still being written."""
    is_passed_by: bool

    @classmethod
    def of(cls, func: OpOverload) -> "OperationSchema":
        """Read them from the schema."""
        schema = func._schema
        family, name = schema.name.split("::")
        written, overwritten = _changed_by(func)
        aliases = [item.alias_info for item in schema.returns]
        return cls(
            name=str(func),
            written=frozenset(written),
            overwritten=frozenset(overwritten),
            may_draw=torch.Tag.nondeterministic_seeded in func.tags,
            takes_generator=any("Generator" in str(item.type) for item in schema.arguments),
            is_uninitialised=family == "aten" and name in _UNINITIALISED,
            is_view=bool(aliases) and all(aliases) and not written and name not in _TAKING_IN,
            is_later=(family in _LATER and name != "wait_tensor") or name == "all_gather_copy_in",
            is_blind=name in ("wait_tensor", "_wrap_tensor_autograd"),
            is_passed_by=family in _PASSED_BY,
        )


def _changed_by(func: OpOverload) -> tuple[set[int | str], set[int | str]]:
    """Return which arguments an operation changes, and those of them whose value before does not matter."""
    family, name = func._schema.name.split("::")
    if family == "c10d":  # says nothing in its schema: what is filled comes first
        return {0}, set() if name in _BOTH_WAYS else {0}
    if name == "all_gather_copy_in":  # fills a part of new memory; the rest comes from other processes
        return {1}, {1}
    written: set[int | str] = set()
    overwritten: set[int | str] = set()
    if torch.Tag.inplace_view in func.tags and name not in _UNINITIALISED:
        return written, overwritten  # other sizes, or other memory: nothing is written
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written |= {place, argument.name}
            if argument.is_out or name in _OVERWRITING:
                overwritten |= {place, argument.name}
    return written, overwritten


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among some values and in lists of them."""
    found = []
    for value in values:
        if is_readable(value):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(tensors_in(value))
    return found


def gather(args: tuple[Any, ...], kwargs: dict[str, Any], *, facts: OperationSchema) -> list[Given]:
    """Return the tensors that an operation was given."""
    is_seen, written, overwritten = not (facts.is_view or facts.is_blind), facts.written, facts.overwritten
    found: list[Given] = []
    for place, value in (*enumerate(args), *kwargs.items()):
        if is_readable(value):
            is_read = is_seen and place not in overwritten
            found.append(Given(value, memory_of(value), place in written, is_read))
        elif isinstance(value, list | tuple):
            is_read = is_seen and place not in overwritten
            tensors = tensors_in(value)
            found.extend(Given(item, memory_of(item), place in written, is_read) for item in tensors)
    return found


def scalars_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return a short text of all arguments that are no tensors; the end of a long one is a digest."""
    words = ["T" if isinstance(value, Tensor) else _text_of(value) for value in args]
    words += [f"{name}={_text_of(value)}" for name, value in kwargs.items() if value is not None]
    text = ", ".join(words)
    if len(text) > _MAX_TEXT:
        text = f"{text[:_KEPT_TEXT]}...#{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return text


def _text_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return "T"
    if value is None or isinstance(value, _PLAIN_TYPES):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text_of, value))}]"
    return type(value).__name__  # no text with an address in it


def find_generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """Return the generator that was given, if one was."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Generator):
            return value
    return None


def find_drawn(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """Return the generator that an operation draws from if it draws; None if torch does not show it."""
    given = find_generator(args, kwargs)
    if given is not None:
        return given
    device = kwargs.get("device") or next((item.device for item in tensors_in(args)), None)
    device = torch.device(device or "cpu")
    if device.type == "cpu":
        return torch.default_generator
    module = module_in_use()
    if module is None or not hasattr(module, "default_generators"):
        return None
    index = module.current_device() if device.index is None else device.index
    found: torch.Generator = module.default_generators[index]
    return found


def state_to_draw(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
    """Return the state of the generator that an operation draws from if it draws; None if it is not known."""
    found = find_drawn(args, kwargs)
    try:
        return None if found is None else found.get_state().numpy().tobytes()
    except RuntimeError:  # while a device's work is being recorded
        return None


class TableWriter:
    """Texts, lines and origins that rows refer to by number; each is written once."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {"": 0}
        self._origins: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}
        self._sites: list[tuple[str, int, str]] = [("", 0, "")]
        self._num_written = [1, 1, 1]
        self._lock = threading.Lock()

    def text(self, text: str) -> int:
        """Return the number of a text."""
        number = self._texts.get(text)
        if number is None:
            with self._lock:
                number = self._texts.setdefault(text, len(self._texts))
        return number

    def site(self, file: str, line: int, *, function: str) -> int:
        """Add a line and return its number."""
        with self._lock:
            self._sites.append((file, line, function))
            return len(self._sites) - 1

    def origin(self, name: int, site: int, *, module: int) -> int:
        """Return the number of an operation of a forward pass: its name, line and module."""
        with self._lock:
            return self._origins.setdefault((name, site, module), len(self._origins))

    def take(self) -> dict[str, list[Any]]:
        """Return what was added since the last time."""
        with self._lock:
            tables: list[list[Any]] = [list(self._texts), list(self._sites), list(self._origins)]
        new = [table[num:] for table, num in zip(tables, self._num_written, strict=True)]
        self._num_written = [len(table) for table in tables]
        return dict(zip(("texts", "sites", "origins"), new, strict=True))


class Values:
    """The file with the values of tensors, one after the other; made when the first comes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._size = 0

    def add(self, raw: bytes) -> int | None:
        """Append values and return where they are; None if the file would become too large."""
        if self._size + len(raw) > _MAX_VALUES_BYTES:
            return None
        if self._file is None:
            self._file = self._path.open("wb", buffering=_HELD_BYTES)
        offset = self._size
        self._file.write(raw)
        self._size += len(raw)
        return offset

    def flush(self) -> None:
        """Write what is held."""
        if self._file is not None:
            self._file.flush()


class Traces:
    """Digests of tensors, their values on file, and which operation has last written which memory."""

    def __init__(self, path: Path, *, bits: str) -> None:
        self._bits = bits
        self._values = Values(values_path(path))
        self._producers: dict[int, tuple[StorageWeakRef | None, int]] = {}
        self._numbers: dict[int, int] = {}
        self._sweep_at = _MIN_SWEPT
        self._new_bytes = 0
        self.num_lasting = 0
        """Operations before training: what they wrote is known as long as it is there."""

    def read_ins(self, given: list[Given]) -> list[In]:
        """Return who wrote each tensor, and a digest of it if it is read; or else its shape."""
        if self._bits == "digests":
            return [
                In(_Copy(item.tensor).digest() if item.is_read else "", self._producer(item.memory))
                for item in given
            ]
        found = []
        for tensor, memory, *_ in given:
            producer, has_grad = self._producer(memory), tensor.requires_grad
            number = 0 if has_grad or producer is not None else self._number(tensor, memory)
            found.append(In("", producer, _shape(tensor), has_grad, number))
        return found

    def read_outs(
        self, index: int, given: list[Given], *, results: list[Tensor], facts: OperationSchema | None
    ) -> list[Out]:
        """Return digests of all results and of all arguments that were changed; keep values and who wrote."""
        written = [item.tensor for item in given if item.is_written]
        owned = {item.memory for item in given if not item.is_written}
        is_read = facts is None or not (facts.is_uninitialised or facts.is_view or facts.is_later)
        changed = [item for item in written if not any(item is result for result in results)]
        outs = []
        for tensor in (*results, *changed):
            memory = memory_of(tensor)
            is_view = memory in owned or (facts is not None and facts.is_view)
            is_view = is_view and not any(tensor is item for item in written)
            if not is_view and (facts is not None or memory not in self._producers):
                self._set_producer(tensor, memory, index)
            digest, offset = "", None
            if is_read and self._bits == "digests":
                copy = _Copy(tensor)
                digest = copy.digest()
                offset = None if is_view else self._keep_values(copy)
            worst = _worst(tensor) if is_read and self._bits == "finite" else None
            outs.append(Out(digest, _name(tensor.dtype), _shape(tensor), offset, worst))
        return outs

    def _number(self, tensor: Tensor, memory: int) -> int:
        """Return a number for memory that nobody known wrote: what is at its address later has it too."""
        if not memory:
            return 0
        address = memory if _is_large(tensor) else tensor.untyped_storage().data_ptr()
        return self._numbers.setdefault(address, len(self._numbers) + 1) if address else 0

    def flush(self) -> None:
        """Write the values that are held."""
        self._values.flush()

    def _producer(self, memory: int) -> int | None:
        known = self._producers.get(memory)
        return None if known is None else known[1]

    def _set_producer(self, tensor: Tensor, memory: int, index: int) -> None:
        if not memory:
            return
        known = self._producers.get(memory)
        if known is not None:
            kept = known[0]
        elif _is_large(tensor):
            kept = None
        else:  # while it is kept, it keeps the address from being given to another one
            kept = StorageWeakRef(tensor.untyped_storage())
            self._new_bytes += tensor.numel() * tensor.element_size()
        self._producers[memory] = (kept, index)
        if len(self._producers) >= self._sweep_at or self._new_bytes > _MAX_NEW_BYTES:
            self._sweep()

    def _sweep(self) -> None:
        """Forget memory that is gone: torch does not give it back while its storage is known weakly."""
        found = self._producers.items()
        self._producers = {key: item for key, item in found if item[0] is None or not item[0].expired()}
        self._sweep_at = max(_MIN_SWEPT, 2 * len(self._producers))
        self._new_bytes = 0

    def forget_passing(self, *, is_end: bool) -> None:
        """A step is made: forget who wrote large memory in training; at the end of the window, any memory."""
        known = self._producers.items()
        self._producers = {
            key: item
            for key, item in known
            if item[1] < self.num_lasting or (item[0] is not None and not is_end)
        }
        self._sweep()

    def _keep_values(self, copy: "_Copy") -> int | None:
        values = copy.values()
        return None if values is None else self._values.add(values)


class _Copy:
    """A tensor's bits at one moment. Copied: NumPy marks memory that it was shown as not to be resized."""

    def __init__(self, tensor: Tensor) -> None:
        self._order = ""
        self._error: str | None = None
        self._tensor: Tensor | None = None
        try:
            self._take(tensor.detach())
        except Exception as error:  # noqa: BLE001 - told in the digest's place
            self._error = f"unreadable: {type(error).__name__}"

    def _take(self, tensor: Tensor) -> None:
        if tensor.layout == torch.strided and tensor.device.type != "meta":
            if tensor.numel() and not tensor.untyped_storage().nbytes():
                return  # its memory was given back, as for a part that is gathered again when it is needed
            if not tensor.is_contiguous():
                tensor = self._turn(tensor)
        self._tensor = tensor.clone()

    def _turn(self, tensor: Tensor) -> Tensor:
        """Return the tensor with its dimensions as they lie in memory: much cheaper to read."""
        strides = tensor.stride()
        order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
        turned = tensor.permute(order)
        if not turned.is_contiguous():
            return tensor.contiguous()
        self._order = str(order)
        return turned

    def digest(self) -> str:
        """Return a digest of its bits, shape and order of dimensions; a text if it could not be read."""
        if self._error is None and self._tensor is not None:
            try:
                return fold([(self._order, self._tensor)])
            except Exception as error:  # noqa: BLE001 - told in the digest's place
                self._error = f"unreadable: {type(error).__name__}"
        return self._error or ""

    def values(self) -> bytes | None:
        """Return its values, or some of them, if NumPy has numbers of their kind."""
        tensor = self._tensor
        if tensor is None or self._error or tensor.dtype not in _KEPT_DTYPES or not tensor.numel():
            return None
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return None
        flat = tensor.resolve_conj().resolve_neg().reshape(-1)
        flat = flat[:: stride_of(flat.numel(), flat.element_size())]
        if flat.dtype == torch.bfloat16:
            flat = flat.view(torch.int16)
        return flat.cpu().numpy().tobytes()


def _worst(tensor: Tensor) -> str:
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return "finite"
    plain = tensor.detach()
    if bool(torch.isfinite(plain).all()):
        return "finite"
    return "nan" if bool(torch.isnan(plain).any()) else "infinite"


def memory_of(tensor: Tensor) -> int:
    """Return the address of what describes a tensor's memory; 0 if it has none of its own.

    Of a large one the address of the memory itself. A storage that Python has once seen counts as used twice,
    and autograd then adds gradients in new memory: as much again as the largest of them.
    """
    try:
        if _is_large(tensor):
            return int(tensor.data_ptr()) - int(tensor.storage_offset()) * tensor.element_size()
        storage = tensor.untyped_storage()
        return int(storage.data_ptr() if storage.nbytes() >= _LARGE_BYTES else storage._cdata)
    except (NotImplementedError, RuntimeError):  # sparse, or of a subclass
        return 0


def _is_large(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() * tensor.element_size() >= _LARGE_BYTES


def _shape(tensor: Tensor) -> tuple[int, ...]:
    try:
        return tuple(tensor.shape)
    except RuntimeError:  # a lazy module's, before its first call
        return ()


def _name(dtype: torch.dtype) -> str:
    name = _NAMES.get(dtype)
    if name is None:
        name = _NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name
