"""`explain`: what tensors are in memory, what they share, and what an expression does to them.

Owns what may be given and how it is put together. Nothing that is given is changed.
"""

import ast
import copy
import inspect
import linecache
import textwrap
from collections.abc import Mapping
from itertools import combinations
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from truestep.errors import UsageError
from truestep.tensor.copies import copy_sharing, undisturbed
from truestep.tensor.facts import Explanation, Sharing
from truestep.tensor.meaning import operation, reason
from truestep.tensor.memory import Ledger, Thing, sharing_of
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
    return Explanation(
        code=None,
        tensors=tuple(ledger.facts(thing, name) for name, thing in given.items()),
        memories=tuple(ledger.memories()),
        sharings=tuple(_sharings(list(given.items()))),
        operations=(),
        notes=(),
        result=None,
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
        tracer = Tracer(Ledger(), Names())
        for name, thing in copies.items():
            tracer.ledger.add(thing)
            tracer.names.give(thing, name)
        value = _run(tracer, code, {"torch": torch, "F": F, "nn": nn, "np": np, **plain, **copies})
        return _explanation(code, tracer, value, has_copies=bool(copies))


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


def _explanation(code: str, tracer: Tracer, value: Any, *, has_copies: bool) -> Explanation:
    events, names = tracer.events, tracer.names
    results = list(things_in(value))
    for at, thing in enumerate(results):
        if (names.of(thing) or "step ").startswith("step "):
            names.give(thing, "result" if value is thing else f"result[{at}]")
    shown = [
        (name, thing) for thing in names.known if not (name := names.of(thing) or "").startswith("step ")
    ]
    notes = []
    if has_copies and any(event.written for event in events):
        notes.append("ran on copies: what was given is unchanged")
    if len(events) > _MAX_STEPS:
        notes.append(f"{len(events) - _MAX_STEPS} more steps are not shown")
    return Explanation(
        code=code,
        tensors=tuple(tracer.ledger.facts(thing, name) for name, thing in shown),
        memories=tuple(tracer.ledger.memories()),
        sharings=tuple(_sharings(shown)),
        operations=tuple(
            operation(event, number, names=names) for number, event in enumerate(events[:_MAX_STEPS], 1)
        ),
        notes=tuple(notes),
        result=None if results or value is None else textwrap.shorten(repr(value), 80),
    )
