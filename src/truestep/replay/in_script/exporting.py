"""Inside the script's process: one step as a list of operations, which a small script computes alone.

Owns what a step is given, by the memory of its tensors, and the text of each operation. What was not seen, as
values that NumPy or compiled code writes, is missing in it: the export is run once to show that it is whole.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from truestep.replay.in_script.listing import Line, needed, script_of
from truestep.watch.operations.traces import OperationSchema, find_drawn, find_generator, memory_of
from truestep.watch.script.tape import Tape

_WIDE = 4
"""How much larger than what is read of it a memory may be to be kept whole: a dataset is not."""
_KINDS = ("weights", "inputs", "generators")


class ExportError(Exception):
    """A step that cannot be written as a list of operations."""


class _Key(NamedTuple):
    """A tensor by what it is: two with the same are the same to any operation."""

    memory: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> "_Key":
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            raise ExportError(f"a tensor of layout {tensor.layout} cannot be exported")
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return cls(memory_of(tensor), tensor.dtype, shape, stride, int(tensor.storage_offset()))

    @property
    def stop(self) -> int:
        """Where it ends in its memory."""
        if 0 in self.shape:
            return self.offset
        steps = ((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return self.offset + sum(steps) + 1


class _Part(NamedTuple):
    """Memory that has a name: all of it, or what was read of a large one."""

    name: str
    dtype: torch.dtype
    start: int
    stop: int
    shift: int
    """How far its memory begins after that of the step."""

    @property
    def span(self) -> tuple[int, int]:
        """Return where it begins and ends, in bytes."""
        return self.start * self.dtype.itemsize, self.stop * self.dtype.itemsize


@dataclass
class _Words:
    """What is met while an operation's arguments are put into words."""

    uses: set[str] = field(default_factory=set)
    reads: set[int] = field(default_factory=set)


class Export:
    """The operations of a step, from its first forward pass to the optimizer's step."""

    def __init__(  # limits: private to this package
        self, tape: Tape, *, step: int, folder: Path, title: str, names: dict[int, str]
    ) -> None:
        self._tape, self._step, self._folder, self._title = tape, step, folder, title
        self._parameter_names = names
        self._lines: list[Line] = []
        self._names: dict[_Key, str] = {}
        self._parts: dict[int, list[_Part]] = {}
        self._written: set[int] = set()
        self._held: list[Any] = []
        """Memory that was met. Freed memory would be given to other tensors of the step."""
        self._files: dict[str, dict[str, Tensor]] = {kind: {} for kind in _KINDS}
        self._drawn: dict[int, bytes] = {}
        self._generators: dict[int, tuple[str, torch.Generator]] = {}
        self._losses: list[Tensor] = []
        self._parameters: dict[int, Tensor] = {}
        self._facts: dict[Any, OperationSchema] = {}
        self._has_modules = self._is_begun = self._is_over = False
        self._trouble = ""
        self._settings: list[str] = []
        tape.listen(
            forward_begins=self._meet_module,
            backward_begins=self._take_loss,
            step_begins=self._take_parameters,
            counted=self._count,
            closing=self._finish,
        )

    @property
    def _is_now(self) -> bool:
        return self._tape.num_steps == self._step and not self._is_over

    def _meet_module(self, *_: Any) -> None:
        self._has_modules = True
        if self._is_now:
            self._begin()

    def _count(self) -> None:
        if self._tape.num_steps == self._step and not self._has_modules:
            self._begin()  # a script without modules: its forward pass is anything from here on
        elif self._tape.num_steps > self._step:
            self._finish()

    def _begin(self) -> None:
        if not self._is_begun and self._tape.recorder is not None:
            self._is_begun = True
            self._settings = _settings()
            self._tape.recorder.follow(self.take)

    def _take_loss(self, tensors: Any, *_: Any) -> None:
        if self._is_now:
            found = tensors if isinstance(tensors, list | tuple) else [tensors]
            self._losses += [item.detach() for item in found if isinstance(item, Tensor)]

    def _take_parameters(self, optimizer: Optimizer, _number: int) -> None:
        if self._is_now:
            values = [value for group in optimizer.param_groups for value in group["params"]]
            self._parameters |= {id(value): value for value in values}

    def take(  # limits: the recorder calls it like this
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, place: str
    ) -> Callable[[Any], None] | None:
        """An operation is about to run: keep what it is given, and return what is told its result."""
        if self._trouble or self._is_over:
            return None
        try:
            return self._take(func, args, kwargs, place)
        except ExportError as error:
            self._trouble = f"{func}: {error}"
            return None

    def _take(  # limits: private to this class
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: str
    ) -> Callable[[Any], None]:
        facts = self._facts_of(func)
        words = _Words()
        drawn = find_drawn(args, kwargs) if facts.may_draw else None
        if drawn is not None:
            self._set_generator(drawn, is_given=find_generator(args, kwargs) is not None)
        elif facts.may_draw:
            raise ExportError("the generator that it draws from is not known")
        texts = [self._text(value, words) for value in args]
        texts += [f"{name}={self._text(value, words)}" for name, value in kwargs.items()]
        given = (*enumerate(args), *kwargs.items())
        writes = _memories(value for key, value in given if key in facts.written)
        if any(len({part.span for part in self._parts[memory]}) > 1 for memory in writes):
            raise ExportError("it changes memory of which only parts were read")
        call = f"ops.{func}({', '.join(texts)})"

        def end(result: Any) -> None:
            if drawn is not None:
                self._drawn[id(drawn)] = _state(drawn)
            self._written.update(writes)
            try:
                targets, text = self._name_results(result)
            except ExportError as error:
                self._trouble = f"{func}: {error}"
                return
            self._lines.append(
                Line(
                    text=f"{text} = {call}" if targets else call,
                    place=place,
                    targets=frozenset(targets),
                    uses=frozenset(words.uses),
                    reads=frozenset(words.reads),
                    writes=frozenset(writes | (set() if facts.is_view else _memories([result]))),
                    is_drawn=drawn is not None,
                )
            )

        return end

    def _facts_of(self, func: Any) -> OperationSchema:
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = OperationSchema.of(func)
        if facts.is_later:
            raise ExportError("other processes take part in it")
        if torch.Tag.inplace_view in func.tags:
            raise ExportError("it gives a tensor another shape in place")
        return facts

    def _text(self, value: Any, words: _Words) -> str:
        """Return an argument as Python writes it."""
        if isinstance(value, Tensor):
            name, memory = self._name_of(value), memory_of(value)
            words.uses.add(name)
            words.reads.add(memory)
            return name
        if isinstance(value, list | tuple):
            inner = ", ".join(self._text(item, words) for item in value)
            return f"[{inner}]"
        if isinstance(value, torch.Generator):
            return self._generators[id(value)][0]
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, float) and not math.isfinite(value):
            return f"float({str(value)!r})"
        plain = (int, float, complex, str, torch.dtype, torch.layout, torch.memory_format)
        if value is None or isinstance(value, plain):
            return repr(value)
        raise ExportError(f"an argument of type {type(value).__name__} cannot be written")

    def _name_of(self, tensor: Tensor) -> str:
        """Return the name of a tensor. One that no operation made is given, with its values of now."""
        key = _Key.of(tensor)
        if key in self._names:
            return self._names[key]
        parts = self._parts.get(key.memory, [])
        found = next(
            (
                part
                for part in parts
                if part.dtype == key.dtype and part.start <= key.offset and key.stop <= part.stop
            ),
            None,
        )
        if found is None:
            found = self._give(tensor, key)
        name = self._names.get(key)
        if name is None:
            name = self._new_name(key)
            where = f"{list(key.shape)}, {list(key.stride)}, {key.offset - found.shift}"
            text = f"{name} = as_strided({found.name}, {where})"
            uses, reads = frozenset([found.name]), frozenset([key.memory])
            self._lines.append(Line(text=text, targets=frozenset([name]), uses=uses, reads=reads))
        return name

    def _new_name(self, key: _Key) -> str:
        self._names[key] = name = f"v{len(self._names)}"
        return name

    def _give(self, tensor: Tensor, key: _Key) -> _Part:
        """Keep what a tensor holds now, as something that the step is given."""
        if key.memory in self._written:
            raise ExportError("it reads memory in another way than it was written")
        storage = tensor.untyped_storage()
        whole = storage.nbytes() // tensor.element_size()
        span = key.stop - key.offset
        is_whole = whole <= _WIDE * max(span, 1024)
        start, stop = (0, whole) if is_whole else (key.offset, key.stop)
        is_plain = tensor.is_contiguous() and key.offset == start and stop - start == tensor.numel()
        shape = key.shape if is_plain else (stop - start,)
        stride = key.stride if is_plain else (1,)
        held = torch.as_strided(tensor.detach(), shape, stride, start).clone()
        own = self._parameter_names.get(id(tensor))
        kind = "weights" if own else "inputs"
        label = own or f"{len(self._files[kind])}"
        while label in self._files[kind]:
            label += "_"
        self._files[kind][label] = held
        given = _Key(key.memory, key.dtype, tuple(shape), tuple(stride), start)
        name = self._new_name(given)
        moved = "" if tensor.is_cpu else f".to({str(tensor.device)!r})"
        text = f"{name} = {kind}[{label!r}]{moved}"
        self._lines.append(Line(text=text, targets=frozenset([name]), file=(kind, label)))
        part = _Part(name, key.dtype, start, stop, start)
        self._parts.setdefault(key.memory, []).append(part)
        self._held.append(storage)
        return part

    def _name_results(self, result: Any) -> tuple[list[str], str]:
        """Return the names that an operation's results get, and how they are written before the `=`."""
        if isinstance(result, Tensor):
            key = _Key.of(result)
            known = self._names.get(key)
            if known is not None:
                return [], known
            name = self._new_name(key)
            if key.memory not in self._parts:
                whole = result.untyped_storage().nbytes() // result.element_size()
                self._parts[key.memory] = [_Part(name, key.dtype, 0, whole, 0)]
                self._written.add(key.memory)
                self._held.append(result.untyped_storage())
            elif all(part.dtype != key.dtype for part in self._parts[key.memory]):
                stop = result.untyped_storage().nbytes() // result.element_size()
                self._parts[key.memory].append(_Part(name, key.dtype, 0, stop, 0))
            return [name], name
        if isinstance(result, list | tuple):
            found = [self._name_results(item) for item in result]
            targets = [name for names, _ in found for name in names]
            return targets, "[" + ", ".join(text for _, text in found) + "]"
        return [], "_"

    def _set_generator(self, generator: torch.Generator, *, is_given: bool) -> None:
        """Write how a generator is set, if it is not where the step's last draw has left it."""
        state = _state(generator)
        if self._drawn.get(id(generator)) == state:
            return
        device = str(generator.device)
        if id(generator) not in self._generators:
            name = f"g{len(self._generators)}"
            made = f"torch.Generator({device!r})" if is_given else _default(generator.device)
            self._generators[id(generator)] = (name, generator)
            self._lines.append(Line(text=f"{name} = {made}", is_drawn=True))
        label = f"{len(self._files['generators'])}"
        self._files["generators"][label] = generator.get_state().clone()
        name = self._generators[id(generator)][0]
        text = f"{name}.set_state(generators[{label!r}])"
        self._lines.append(Line(text=text, is_drawn=True, file=("generators", label)))

    def _finish(self) -> None:
        if self._is_over or not self._is_begun:
            return
        self._is_over = True
        if self._tape.recorder is not None:
            self._tape.recorder.follow(None)
        if not self._trouble:
            try:
                self._write()
            except (ExportError, OSError) as error:
                self._trouble = str(error)
        self._tape.write("export", trouble=self._trouble, operations=len(self._lines))

    def _results(self) -> dict[str, Tensor]:
        found = {f"loss {place}" if place else "loss": loss for place, loss in enumerate(self._losses)}
        is_stepped = self._tape.num_steps > self._step
        for value in self._parameters.values():
            name = self._parameter_names.get(id(value), f"a parameter of shape {tuple(value.shape)}")
            while name in found:
                name += " again"
            if is_stepped:
                found[name] = value.detach()
            elif value.grad is not None:
                found[f"gradient of {name}"] = value.grad.detach()
        return found

    def _write(self) -> None:
        results = {name: value for name, value in self._results().items() if memory_of(value) in self._parts}
        named = {name: self._name_of(value) for name, value in results.items()}
        if not named:
            raise ExportError("the step has no loss, and no optimizer changes a parameter in it")
        lines = needed(self._lines, names=set(named.values()), memories=_memories(results.values()))
        self._folder.mkdir(parents=True, exist_ok=True)
        used = {line.file for line in lines}
        for kind, tensors in self._files.items():
            kept = {name: value.cpu() for name, value in tensors.items() if (kind, name) in used}
            save_file(kept, self._folder / f"{kind}.safetensors")
        (self._folder / "expected.json").write_text(
            json.dumps({name: _digest(value) for name, value in results.items()}, indent=1) + "\n"
        )
        text = script_of(lines, title=self._title, settings=self._settings, results=named)
        (self._folder / "step.py").write_text(text)


def _memories(values: Iterable[Any]) -> set[int]:
    found = set()
    for value in values:
        if isinstance(value, Tensor):
            found.add(memory_of(value))
        elif isinstance(value, list | tuple):
            found |= _memories(value)
    return found


def _default(device: torch.device) -> str:
    if device.type == "cpu":
        return "torch.default_generator"
    return f"torch.get_device_module({device.type!r}).default_generators[{device.index or 0}]"


def _settings() -> list[str]:
    """Return what bits depend on besides values."""
    return [
        "torch.set_grad_enabled(False)",
        f"torch.set_num_threads({torch.get_num_threads()})",
        f"torch.use_deterministic_algorithms({torch.are_deterministic_algorithms_enabled()}, warn_only=True)",
        f"torch.set_float32_matmul_precision({torch.get_float32_matmul_precision()!r})",
    ]


def _state(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


def _digest(value: Tensor) -> str:
    raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(raw.tobytes()).hexdigest()
