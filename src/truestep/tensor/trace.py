"""Runs code and notes each torch operation in it, with the piece of code that did it.

Owns the running and the noting: facts before, facts after, what the dispatcher did. What an operation
means is told by `telling`.
"""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from truestep.errors import UsageError
from truestep.tensor.facts import TensorFacts
from truestep.tensor.memory import (
    UNUSABLE,
    Ledger,
    Thing,
    grad_fn_name,
    is_same_memory,
    sharing_of,
    unwatched,
)

_STEPS = (ast.Call, ast.Attribute, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.Compare)
_MARK = "__truestep_told__"
_QUIET = {"detach", "lift_fresh"}
"""What torch does under a mode for its own book-keeping; told only where the user asked for it."""

UNNAMED = "a tensor"
"""One that came about inside a call, and that nobody else holds."""
_SHOWN = {"len", "item", "tolist", "backward", "numel", "size", "equal", "allclose", "setitem"}
"""Operations that give no tensor and are told nevertheless."""
_INNER = {"lift_fresh"}
MODULES = {"torch", "F", "nn", "np"}
"""The names that code may use besides those given."""


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
    sources: list[tuple[str, Thing]] = field(default_factory=list)
    """Which of the tensors known before live in the memory of the first output."""
    inside: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    saved: list[tuple[str, Tensor, int]] = field(default_factory=list)
    """What autograd keeps for backward: the name of the slot, the tensor, its version."""
    shared: list[int] = field(default_factory=list)
    """Which of the inputs live in the memory of an output."""
    touched: list[Thing] = field(default_factory=list)
    """Which other known tensors have elements among those written to."""
    broken: list["Event"] = field(default_factory=list)
    """Earlier events that cannot go backward any more: what they kept was written to."""
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


class _Dispatched(TorchDispatchMode):
    def __init__(self, inside: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inside = inside

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # limits: torch's
        self._inside.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _version(thing: Thing) -> int:
    is_counted = isinstance(thing, Tensor) and not thing.is_inference()
    return thing._version if is_counted and isinstance(thing, Tensor) else 0


def function_name(func: Any) -> str:
    """Return `reshape` for `Tensor.reshape`, `T` for the property, `data=` for setting one."""
    name = str(getattr(func, "__name__", func))
    if name in {"__get__", "__set__"}:
        owner = getattr(getattr(func, "__self__", None), "__name__", name)
        return f"{owner}=" if name == "__set__" else str(owner)
    if name.startswith("__") and name.endswith("__"):
        return name.strip("_")
    return name.partition(".")[0]


def _saved_by(outputs: list[Thing]) -> list[tuple[str, Tensor, int]]:
    tensors = [item for item in outputs if isinstance(item, Tensor) and grad_fn_name(item) is not None]
    node = tensors[0].grad_fn if tensors and grad_fn_name(tensors[0]) != UNUSABLE else None
    saved: list[tuple[str, Tensor, int]] = []
    for name in dir(node) if node is not None else ():
        if name.startswith("_saved_"):
            try:
                value = getattr(node, name)
            except RuntimeError:  # released, or changed already
                continue
            items = value if isinstance(value, tuple) else (value,)
            slot = name.removeprefix("_saved_")
            saved += [(slot, item, _version(item)) for item in items if isinstance(item, Tensor)]
    return saved


class Tracer(TorchFunctionMode):
    """Notes torch functions while code runs; `run` gives what the code gave."""

    def __init__(self, ledger: Ledger, names: Names) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.failed: Event | None = None
        self._ledger, self._names = ledger, names
        self._pending: list[Event] = []
        self._inside: list[str] = []
        self._texts: list[str] = []

    # Noting what torch does

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # limits: torch's
        kwargs = kwargs or {}
        if function_name(func) in _INNER:
            return func(*args, **kwargs)
        inputs = list(things_in([args, kwargs]))
        event = Event(name=function_name(func), code="", args=args, kwargs=kwargs, inputs=inputs)
        event.before = [self._facts(thing) for thing in inputs]
        versions = [_version(thing) for thing in inputs]
        known = list(self._names.known)
        self._inside.clear()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                event.value = func(*args, **kwargs)
        except Exception:
            self.failed = event
            raise
        event.warned = [str(item.message) for item in caught]
        event.written = [at for at, thing in enumerate(inputs) if _version(thing) > versions[at]]
        self._finish(event, known)
        self._pending.append(event)
        return event.value

    def _finish(self, event: Event, known: list[Thing]) -> None:
        with unwatched():
            event.inside = [name for name in self._inside if name not in _QUIET or name == event.name]
            self._inside.clear()
            event.outputs = list(things_in(event.value))
            event.broken = self._break(event)
            event.saved = _saved_by(event.outputs)
            event.shared = [
                at
                for at, thing in enumerate(event.inputs)
                if any(is_same_memory(thing, made) for made in event.outputs)
            ]
            event.touched = _overlapping(event, known)
            if event.outputs:
                relatives = [thing for thing in known if is_same_memory(thing, event.outputs[0])]
                event.sources = [(self._names.of(thing) or UNNAMED, thing) for thing in relatives]
            event.after = [self._facts(thing) for thing in event.outputs]

    def _break(self, event: Event) -> list[Event]:
        if not event.written:
            return []
        earlier = [*self.events, *self._pending]
        known = {id(item) for other in earlier for item in other.broken}
        return [
            item
            for item in earlier
            if id(item) not in known and any(_version(kept) > at for _, kept, at in item.saved)
        ]

    def _facts(self, thing: Thing) -> TensorFacts:
        return self._ledger.facts(thing, self._names.of(thing) or UNNAMED)

    # Running code, and knowing which piece of it is at work

    def run(self, code: str, namespace: dict[str, Any]) -> Any:
        """Run statements, and give the value of the last one if it is an expression."""
        tree = _parse(code)
        namespace[_MARK] = self._record_value
        value: Any = None
        with _Dispatched(self._inside), self:
            for statement in tree.body:
                text = ast.get_source_segment(code, statement) or ""
                marked = _Marker(code, self._texts).mark(statement)
                if isinstance(marked, ast.Expr):
                    value = eval(compile(ast.Expression(marked.value), "<explained>", "eval"), namespace)
                else:
                    exec(compile(ast.Module([marked], []), "<explained>", "exec"), namespace)
                    value = None
                self._end_statement(statement, text, namespace)
        return value

    def _record_value(self, index: int, value: Any) -> Any:
        """Called with the value of each piece of the code, as soon as it is known."""
        with unwatched():
            outputs = list(things_in(value))
            main = next((event for event in reversed(self._pending) if _is_value(event, value)), None)
            if main is None and outputs and all(self._names.of(thing) is None for thing in outputs):
                main = self._from_elsewhere(index, value, outputs)
            self._keep(main, self._texts[index])
        return value

    def _from_elsewhere(self, index: int, value: Any, outputs: list[Thing]) -> Event:
        """Note a value that no torch function gave: NumPy's, or from a constructor written in C."""
        text = self._texts[index].split("(")[0].rstrip(")")
        event = Event(name=text.rpartition(".")[2] or "value", code="", value=value, is_torch=False)
        self._inside.clear()
        relatives = [thing for thing in self._names.known if is_same_memory(thing, outputs[0])]
        event.outputs, event.sources = outputs, [(self._names.of(item) or "", item) for item in relatives]
        event.inputs = relatives[-1:]
        event.before = [self._facts(thing) for thing in event.inputs]
        event.shared = list(range(len(event.inputs)))
        event.after = [self._facts(thing) for thing in outputs]
        return event

    def _keep(self, main: Event | None, text: str) -> None:
        """Move what belongs to the story from the events that wait; the rest was torch's own business."""
        wanted = {id(thing) for thing in main.inputs} if main is not None else set()
        kept: list[Event] = []
        for event in reversed(self._pending):
            gives = any(id(thing) in wanted and self._names.of(thing) is None for thing in event.outputs)
            writes = any(self._names.of(event.inputs[at]) is not None for at in event.written)
            if event is not main and (gives or writes):
                wanted |= {id(thing) for thing in event.inputs}
                event.code = event.code or event.name
                kept.append(event)
        self._pending.clear()
        if main is not None:
            main.code = text
            kept.insert(0, main)
        for event in reversed(kept):
            if _is_shown(event):
                self._add(event)

    def _add(self, event: Event) -> None:
        self.events.append(event)
        for at, thing in enumerate(event.outputs):
            if self._names.of(thing) is None:
                part = f"[{at}]" if len(event.outputs) > 1 else ""
                self._names.give(thing, f"step {len(self.events)}{part}")
        self._rename(event)

    def _rename(self, event: Event) -> None:
        for facts, things in ((event.before, event.inputs), (event.after, event.outputs)):
            facts[:] = [
                replace(item, name=self._names.of(thing) or item.name)
                for item, thing in zip(facts, things, strict=True)
            ]

    def _end_statement(self, statement: ast.stmt, text: str, namespace: dict[str, Any]) -> None:
        with unwatched():
            main = next((event for event in reversed(self._pending) if event.outputs or event.written), None)
            is_silent = not isinstance(
                statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.For)
            )
            self._keep(None if is_silent else main, text)
            self._wrote_array(statement, text, namespace)
            for name in _targets(statement):
                value = namespace.get(name)
                if isinstance(value, (Tensor, np.ndarray)):
                    self._bind(statement, text, name, value)

    def _bind(self, statement: ast.stmt, text: str, name: str, value: Thing) -> None:
        old = self._names.of(value)
        is_alias = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name)
        if is_alias and old is not None:
            event = Event(name="=", code=text, value=value, inputs=[value], outputs=[value])
            event.before, event.after = [self._facts(value)], [self._facts(value)]
            self.events.append(event)
        elif old is None or old.startswith("step "):
            self._names.give(value, name)
            for event in self.events:
                if any(thing is value for thing in event.outputs):
                    self._rename(event)

    def _wrote_array(self, statement: ast.stmt, text: str, namespace: dict[str, Any]) -> None:
        """Note a statement that writes into a NumPy array, which torch does not see."""
        given = (
            statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        )
        is_written = isinstance(given, ast.Subscript) or isinstance(statement, ast.AugAssign)
        name = next((node.id for node in ast.walk(given) if isinstance(node, ast.Name)), "") if given else ""
        value = namespace.get(name)
        if is_written and isinstance(value, np.ndarray):
            event = Event(name="setitem", code=text, inputs=[value], written=[0])
            event.before = [self._facts(value)]
            event.touched = _overlapping(event, self._names.known)
            self._add(event)


def _overlapping(event: Event, known: list[Thing]) -> list[Thing]:
    written = [event.inputs[at] for at in event.written]
    return [
        thing
        for thing in known
        if all(thing is not item for item in event.inputs)
        and any(sharing_of(("", item), ("", thing)).is_overlapping for item in written)
    ]


def _is_shown(event: Event) -> bool:
    """Whether an event is a step: it gave a tensor, wrote to one, or is something that people ask about."""
    is_named = event.name in _SHOWN or event.name.endswith("=")
    return bool(event.outputs or event.written or is_named or isinstance(event.value, Tensor))


def _is_value(event: Event, value: Any) -> bool:
    if event.value is value or (type(value) is type(event.value) is int and event.value == value):
        return value is not None or event.name in _SHOWN
    mine = {id(thing) for thing in event.outputs}
    return bool(mine) and mine == {id(thing) for thing in things_in(value)}


def _parse(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except SyntaxError as error:
        raise UsageError(
            f"{code!r} is not Python: {error.msg} (at character {error.offset}). "
            "Write an expression, or statements with ; between them."
        ) from error


def _targets(statement: ast.stmt) -> list[str]:
    given = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    nodes = [node for target in given if target is not None for node in ast.walk(target)]
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


class _Marker(ast.NodeTransformer):
    """Wraps each piece of code that can be an operation, so that its value is told when it is known."""

    def __init__(self, code: str, texts: list[str]) -> None:
        self._code, self._texts = code, texts
        self._prefix: dict[int, str] = {}

    def mark(self, statement: ast.stmt) -> Any:
        """Return the statement with its pieces wrapped."""
        if isinstance(statement, ast.Assign):
            targets = [ast.get_source_segment(self._code, target) or "" for target in statement.targets]
            self._prefix[id(statement.value)] = " = ".join([*targets, ""])
        return ast.fix_missing_locations(self.visit(statement))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Wrap a piece after the pieces in it."""
        is_step = isinstance(node, _STEPS) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        text = self._text(node) if is_step and isinstance(node, ast.expr) else ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)  # the method itself is no step
            node.args = [self.visit(item) for item in node.args]
            node.keywords = [self.visit(item) for item in node.keywords]
        else:
            super().generic_visit(node)
        if not is_step or not isinstance(node, ast.expr):
            return node
        self._texts.append(text)
        place = ast.Constant(len(self._texts) - 1)
        call = ast.Call(ast.Name(_MARK, ast.Load()), [place, node], [])
        return ast.copy_location(call, node)

    def _text(self, node: ast.expr) -> str:
        """Return the piece's own code; what comes before a method or index is a step of its own."""
        whole = ast.get_source_segment(self._code, node) or ""
        inner = node.func if isinstance(node, ast.Call) else node
        before = getattr(inner, "value", None) if isinstance(inner, (ast.Attribute, ast.Subscript)) else None
        if isinstance(before, ast.expr) and _is_tensor_like(before):
            whole = "… " + whole.partition(ast.get_source_segment(self._code, before) or "")[2].lstrip(") ")
        return self._prefix.get(id(node), "") + " ".join(whole.split())


def _is_tensor_like(node: ast.expr) -> bool:
    """Whether a node was an operation itself: not a bare name, not a path such as `torch.linalg`."""
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    is_path = isinstance(inner, ast.Name) and inner.id in MODULES
    return isinstance(node, _STEPS) and not is_path
