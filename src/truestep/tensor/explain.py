"""`explain`: what tensors are in memory, what they share, and what an expression does to them.

Owns what may be given and how it is put together. Nothing that is given is changed.
"""

import ast
import copy
import inspect
import linecache
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from truestep.errors import UsageError
from truestep.tensor.copies import copy_sharing, undisturbed
from truestep.tensor.explanation import Explanation
from truestep.tensor.facts import Jacobian, Sharing, TensorFacts
from truestep.tensor.gradients import backward_notes, jacobians
from truestep.tensor.memory import Ledger, Thing, grad_fn_name, label, sharing_of
from truestep.tensor.reasons import reason
from truestep.tensor.telling import operation
from truestep.tensor.trace import Names, Tracer, things_in

_MAX_STEPS = 100
_PLAIN = (int, float, complex, bool, str, slice, torch.dtype, torch.device, type(None), type(...))


def explain(*things: Any, **named: Any) -> Explanation:
    """Show where tensors and NumPy arrays are in memory, what they share, and what an expression does.

    Give tensors and arrays, by name or not; or code as text, with the tensors it uses by name. Code may
    use `torch`, `F`, `nn` and `np`, and several statements with `;` between them. It runs on copies that
    share memory among themselves as the originals do: whatever it writes, what was given stays unmodified.

    >>> x = torch.arange(6).view(2, 3)
    >>> told = explain("x.T.reshape(-1)", x=x)
    >>> [(step.name, step.verdict) for step in told.operations]
    [('T', 'view'), ('reshape', 'copy')]
    """
    if things and isinstance(things[0], str):
        if len(things) > 1:
            raise UsageError(
                f"explain takes one text of code, and tensors by name; got {len(things)} by position. "
                "Write explain('x + y', x=x, y=y)."
            )
        return _explain_code(things[0], named)
    frame = inspect.currentframe()
    given = _named(things, named, frame.f_back if frame is not None else None)
    if not given:
        raise UsageError("explain needs something to explain. Give tensors, explain(x=x), or code as text.")
    return _explain_tensors(given)


def _named(things: tuple[Any, ...], named: Mapping[str, Any], frame: FrameType | None) -> dict[str, Thing]:
    """Name what was given by position as it is called in the caller's code, where that is a plain name."""
    written = _names_in_call(frame) if frame is not None else []
    given: dict[str, Thing] = {}
    for number, thing in enumerate(things, 1):
        name = written[number - 1] if len(written) == len(things) else None
        if name is None or name in given or name in named:
            name = f"tensor {number}"
        given[name] = _checked(thing, name)
    return given | {name: _checked(thing, name) for name, thing in named.items()}


def _names_in_call(frame: FrameType) -> list[str | None]:
    """Return the names of the positional arguments in the caller's source; nothing if it cannot be read."""
    place = inspect.getframeinfo(frame, context=0).positions
    if place is None or place.lineno is None or place.end_lineno is None:
        return []
    numbers = range(place.lineno, place.end_lineno + 1)
    lines = [linecache.getline(frame.f_code.co_filename, at, frame.f_globals).encode() for at in numbers]
    if not all(lines):
        return []
    lines[-1] = lines[-1][: place.end_col_offset]
    lines[0] = lines[0][place.col_offset :]  # after the end, which counts from the line's start
    try:
        call = ast.parse(b"".join(lines).decode().strip(), mode="eval").body
    except SyntaxError:
        return []
    arguments = call.args if isinstance(call, ast.Call) else []
    return [item.id if isinstance(item, ast.Name) else None for item in arguments]


def _checked(thing: Any, name: str) -> Thing:
    if isinstance(thing, Tensor) and thing.layout is not torch.strided:
        raise UsageError(f"{name} has layout {thing.layout}, which has no strides. Give x.to_dense().")
    if isinstance(thing, np.ndarray) and thing.dtype.hasobject:
        raise UsageError(f"{name} is an array of Python objects. Give an array of numbers.")
    if not isinstance(thing, (Tensor, np.ndarray)):
        raise UsageError(
            f"{name} is of type {type(thing).__name__}; explain takes tensors, parameters and NumPy arrays. "
            "Give one of these, or code as text: explain('x.view(-1)', x=x)."
        )
    return thing


def _explain_tensors(given: Mapping[str, Thing]) -> Explanation:
    ledger = Ledger()
    for thing in given.values():
        ledger.add(thing)
    facts = [ledger.facts(thing, name) for name, thing in given.items()]
    return _finished(
        Explanation(
            code=None,
            tensors=tuple(facts),
            memories=tuple(ledger.memories()),
            sharings=tuple(_sharings(list(given.items()))),
            operations=(),
            jacobians=(),
            notes=(),
            result=None,
        )
    )


def _sharings(given: list[tuple[str, Thing]]) -> list[Sharing]:
    pairs = (sharing_of(one, two) for one, two in combinations(given, 2))
    return [sharing for sharing in pairs if sharing.is_same_memory]


def _explain_code(code: str, named: Mapping[str, Any]) -> Explanation:
    code = textwrap.dedent(code).strip()
    tensors = {name: value for name, value in named.items() if isinstance(value, (Tensor, np.ndarray))}
    for name, value in named.items():
        if name in tensors:
            _checked(value, name)
        elif not _is_plain(value):
            raise UsageError(
                f"{name} is of type {type(value).__name__}; code may use tensors, arrays and plain values. "
                "Build layers inside the code: nn.Linear(4, 2)(x)."
            )
    plain = copy.deepcopy({name: value for name, value in named.items() if name not in tensors})
    with undisturbed():
        copies = copy_sharing(tensors)
        ledger, names = Ledger(), Names()
        for name, thing in copies.items():
            ledger.add(thing)
            names.give(thing, name)
        tracer = Tracer(ledger, names)
        space = {"torch": torch, "F": F, "nn": nn, "np": np, **plain, **copies}
        value = _run(tracer, code, space)
        return _explanation(
            code, tracer, _Run(ledger=ledger, names=names, given=tensors, copies=copies, value=value)
        )


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain(item) for item in value)
    return isinstance(value, _PLAIN)


def _run(tracer: Tracer, code: str, space: dict[str, Any]) -> Any:
    try:
        return tracer.run(code, space)
    except UsageError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
        why = reason(tracer.failed) if tracer.failed is not None else ""
        because = f". Why: {why}." if why else ""
        raise UsageError(f"{code!r} fails: {type(error).__name__}: {first}{because}") from error


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run of code that has ended: where everything is, and what it gave."""

    ledger: Ledger
    names: Names
    given: dict[str, Thing]
    copies: dict[str, Thing]
    value: Any


def _explanation(code: str, tracer: Tracer, run: _Run) -> Explanation:
    events = tracer.events
    results = _name_results(run)
    shown = [(name, thing) for thing in run.names.known if (name := _shown_name(run, thing))]
    with torch.enable_grad():
        found, notes = _gradients(run, results)
    if any(event.written for event in events) and run.given:
        notes.insert(0, "ran on copies: what was given is unchanged")
    if len(events) > _MAX_STEPS:
        notes.append(f"{len(events) - _MAX_STEPS} more steps are not shown")
    return _finished(
        Explanation(
            code=code,
            tensors=tuple(_final_facts(run, name, thing) for name, thing in shown),
            memories=tuple(run.ledger.memories()),
            sharings=tuple(_sharings(shown)),
            operations=tuple(
                operation(event, number, names=run.names)
                for number, event in enumerate(events[:_MAX_STEPS], 1)
            ),
            jacobians=tuple(found),
            notes=tuple(notes),
            result=None if results or run.value is None else _short(repr(run.value)),
        )
    )


def _name_results(run: _Run) -> list[Thing]:
    results = list(things_in(run.value))
    for at, thing in enumerate(results):
        name = run.names.of(thing)
        if name is None or name.startswith("step "):
            run.names.give(thing, "result" if isinstance(run.value, type(thing)) else f"result[{at}]")
    return results


def _shown_name(run: _Run, thing: Thing) -> str:
    name = run.names.of(thing) or ""
    return "" if name.startswith("step ") else name


def _final_facts(run: _Run, name: str, thing: Thing) -> TensorFacts:
    facts = run.ledger.facts(thing, name)
    original = next((run.given[key] for key, copy in run.copies.items() if copy is thing), None)
    if isinstance(original, Tensor) and facts.grad_fn is not None and (recorded := grad_fn_name(original)):
        return replace(facts, grad_fn=recorded)
    return facts


def _gradients(run: _Run, results: list[Thing]) -> tuple[list[Jacobian], list[str]]:
    if len(results) != 1 or not isinstance(results[0], Tensor):
        return [], []
    result = results[0]
    if grad_fn_name(result) is None:
        return [], []
    leaves = [
        (name, thing)
        for thing in run.names.known
        if isinstance(thing, Tensor) and thing.requires_grad and (name := run.names.of(thing))
        if grad_fn_name(thing) is None or any(copy is thing for copy in run.copies.values())
    ]
    found, failed = jacobians(result, [(name, leaf) for name, leaf in leaves if leaf is not result])
    return found, [*backward_notes(result), *failed]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _finished(explanation: Explanation) -> Explanation:
    """Give the memories labels in the order in which they are shown, and leave out those that are not."""
    shown: dict[str, str] = {}
    steps = [facts for step in explanation.operations for facts in (*step.inputs, *step.outputs)]
    for facts in [*explanation.tensors, *steps]:
        shown.setdefault(facts.memory, label(len(shown)))

    def renamed(items: tuple[TensorFacts, ...]) -> tuple[TensorFacts, ...]:
        return tuple(replace(facts, memory=shown[facts.memory]) for facts in items)

    memories = [
        replace(item, label=shown[item.label]) for item in explanation.memories if item.label in shown
    ]
    return replace(
        explanation,
        tensors=renamed(explanation.tensors),
        operations=tuple(
            replace(step, inputs=renamed(step.inputs), outputs=renamed(step.outputs))
            for step in explanation.operations
        ),
        memories=tuple(sorted(memories, key=lambda item: (len(item.label), item.label))),
    )
