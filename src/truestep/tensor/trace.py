"""Runs code and notes each torch operation in it, with the piece of code that did it.

Owns the running and the noting: facts before, facts after. What an operation means is up to `meaning`.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from truestep.tensor.facts import TensorFacts
from truestep.tensor.memory import Ledger, Thing, is_overlapping, is_same_memory, unwatched

_FILE = "<explained>"
_MARK = "__truestep_value__"
_WITHOUT_TENSOR = {"len", "item", "tolist", "backward", "numel", "size", "equal", "allclose", "setitem"}
"""Operations that give no tensor and are shown nevertheless."""
_INTERNAL = {"lift_fresh"}


def things_in(value: Any) -> Iterator[Thing]:
    """Yield every strided tensor and every array in a value, inside tuples, lists and dictionaries too."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, np.ndarray):
        if not value.dtype.hasobject:
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from things_in(item)
    elif isinstance(value, dict):
        yield from things_in(list(value.values()))


@dataclass(kw_only=True, eq=False)
class Event:
    """One call of a torch function, or one value that came from elsewhere."""

    name: str
    code: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    inputs: list[Thing] = field(default_factory=list)
    before: list[TensorFacts] = field(default_factory=list)
    value: Any = None
    outputs: list[Thing] = field(default_factory=list)
    after: list[TensorFacts] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    """Which of the inputs the call has written to."""
    viewed: list[Thing] = field(default_factory=list)
    """The tensors known before that live in the memory of the first output."""
    touched: list[Thing] = field(default_factory=list)
    """Which other known tensors have elements among those written to."""
    is_torch: bool = True
    """False where no torch function was seen: then its arguments are not known."""


class Names:
    """What each tensor is called; keeps all of them alive, so that no address is used twice."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self.known: list[Thing] = []

    def give(self, thing: Thing, name: str) -> None:
        """Call it so from now on; what had the name is "the earlier" one."""
        if id(thing) not in self._names:
            self.known.append(thing)
        for old in [key for key, other in self._names.items() if other == name and key != id(thing)]:
            self._names[old] = f"the earlier {name}"
        self._names[id(thing)] = name

    def of(self, thing: Thing) -> str | None:
        """Return what it is called, or None if it was never met."""
        return self._names.get(id(thing))


def function_name(func: Any) -> str:
    """Return `reshape` for `Tensor.reshape`, `T` for the property, `data=` for setting one."""
    name = str(getattr(func, "__name__", func))
    if name in {"__get__", "__set__"}:
        owner = getattr(getattr(func, "__self__", None), "__name__", name)
        return f"{owner}=" if name == "__set__" else str(owner)
    if name.startswith("__") and name.endswith("__"):
        return name.strip("_")
    return name.partition(".")[0]


def _version(thing: Thing) -> int:
    is_counted = isinstance(thing, Tensor) and not thing.is_inference()
    return thing._version if is_counted and isinstance(thing, Tensor) else 0


class Tracer(TorchFunctionMode):
    """Notes torch functions while code runs; `run` gives what the code gave."""

    def __init__(self, ledger: Ledger, names: Names) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.failed: Event | None = None
        self.ledger, self.names = ledger, names
        self._code = ""

    def run(self, code: str, namespace: dict[str, Any]) -> Any:
        """Run statements, and give the value of the last one if it is an expression."""
        tree = ast.parse(code)
        self._code = code
        namespace[_MARK] = self._note_value
        value: Any = None
        with self:
            for statement in ast.fix_missing_locations(_Marked().visit(tree)).body:
                if isinstance(statement, ast.Expr):
                    value = eval(compile(ast.Expression(statement.value), _FILE, "eval"), namespace)
                else:
                    value = None
                    exec(compile(ast.Module([statement], []), _FILE, "exec"), namespace)
                with unwatched():
                    self._name_targets(statement, code, namespace)
        return value

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # limits: torch's
        kwargs = kwargs or {}
        name = function_name(func)
        code = self._where(sys._getframe(1), name)
        if code is None or name in _INTERNAL:
            return func(*args, **kwargs)
        event = Event(name=name, code=code, args=args, kwargs=kwargs)
        event.inputs = list(things_in([args, kwargs]))
        event.before = [self.ledger.facts(thing) for thing in event.inputs]
        versions = [_version(thing) for thing in event.inputs]
        try:
            event.value = func(*args, **kwargs)
        except Exception:
            self.failed = event
            raise
        event.written = [at for at, thing in enumerate(event.inputs) if _version(thing) > versions[at]]
        event.outputs = list(things_in(event.value))
        with unwatched():
            self._add(event)
        return event.value

    def _where(self, frame: Any, name: str) -> str | None:
        """Return the piece of the explained code that is at work; None in the constructor of a layer."""
        while frame is not None and frame.f_code.co_filename != _FILE:
            is_constructor = frame.f_code.co_name == "__init__"
            if is_constructor and isinstance(frame.f_locals.get("self"), nn.Module):
                return None
            frame = frame.f_back
        if frame is None:
            return None
        position = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        return _segment(self._code, position) or name

    def _note_value(self, value: Any) -> Any:
        """Note the value of a call that no torch function gave: NumPy's, or a constructor's written in C."""
        with unwatched():
            outputs = list(things_in(value))
            if outputs and all(self.names.of(thing) is None for thing in outputs):
                code = self._where(sys._getframe(1), "value") or "value"
                name = code.partition("(")[0].rpartition(".")[2]
                event = Event(name=name, code=code, value=value, is_torch=False)
                event.outputs = outputs
                event.inputs = [item for item in self.names.known if is_same_memory(item, outputs[0])][-1:]
                event.before = [self.ledger.facts(thing) for thing in event.inputs]
                self._add(event)
        return value

    def _add(self, event: Event) -> None:
        is_named = event.name in _WITHOUT_TENSOR or event.name.endswith("=")
        if not (event.outputs or event.written or is_named or isinstance(event.value, Tensor)):
            return
        event.touched = _overlapping(event, self.names.known)
        if event.outputs:
            event.viewed = [item for item in self.names.known if is_same_memory(item, event.outputs[0])]
        self.events.append(event)
        for at, thing in enumerate(event.outputs):
            if self.names.of(thing) is None:
                part = f"[{at}]" if len(event.outputs) > 1 else ""
                self.names.give(thing, f"step {len(self.events)}{part}")
        event.after = [self.ledger.facts(thing) for thing in event.outputs]

    def _name_targets(self, statement: ast.stmt, code: str, namespace: dict[str, Any]) -> None:
        text = ast.get_source_segment(code, statement) or ""
        for name in _targets(statement):
            value = namespace.get(name)
            if not isinstance(value, (Tensor, np.ndarray)):
                continue
            old = self.names.of(value)
            is_alias = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name)
            if is_alias and old is not None:
                event = Event(name="=", code=text, value=value, inputs=[value], outputs=[value])
                event.before = event.after = [self.ledger.facts(value)]
                self.events.append(event)
            elif old is None or old.startswith("step "):
                self.names.give(value, name)


def _overlapping(event: Event, known: list[Thing]) -> list[Thing]:
    written = [event.inputs[at] for at in event.written]
    return [
        thing
        for thing in known
        if all(thing is not item for item in event.inputs)
        and any(is_overlapping(item, thing) for item in written)
    ]


class _Marked(ast.NodeTransformer):
    """Wraps each call, so that its value is noted when it is known."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Wrap a call after those in it."""
        self.generic_visit(node)
        return ast.copy_location(ast.Call(ast.Name(_MARK, ast.Load()), [node], []), node)


def _segment(code: str, position: tuple[int | None, ...]) -> str:
    """Return a piece of code, in one line; empty if its place is not known."""
    first, last, begin, end = position
    if first is None or last is None or begin is None or end is None:
        return ""
    lines = [line.encode() for line in code.splitlines()[first - 1 : last]]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]  # after the end, which counts from the line's start
    return " ".join(b" ".join(lines).decode().split())


def _targets(statement: ast.stmt) -> list[str]:
    given = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    nodes = [node for target in given if target is not None for node in ast.walk(target)]
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
