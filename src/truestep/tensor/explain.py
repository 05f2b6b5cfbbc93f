"""`explain`: what tensors are in memory, what they share, and what an expression does to them.

Owns what may be given and how it is put together. Nothing that is given is changed.
"""

import copy
import textwrap
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from truestep.errors import UsageError
from truestep.tensor.copies import copy_sharing, undisturbed
from truestep.tensor.facts import Explanation, Sharing
from truestep.tensor.meaning import operation, why_no_view
from truestep.tensor.memory import Ledger, Thing, is_overlapping, is_same_memory
from truestep.tensor.trace import Names, Tracer, things_in


def explain(code: str | None = None, /, **named: Any) -> Explanation:
    """Show where tensors and NumPy arrays are in memory, what they share, and what an expression does.

    Give tensors and arrays by name; or code as text, with the tensors that it uses by name. Code may
    use `torch`, `F`, `nn` and `np`, and several statements with `;` between them. It runs on copies that
    share memory among themselves as the originals do: whatever it writes, what was given stays unmodified.

    >>> x = torch.arange(6).view(2, 3)
    >>> told = explain("x.T.reshape(-1)", x=x)
    >>> [(step.name, step.verdict) for step in told.operations]
    [('T', 'view'), ('reshape', 'copy')]
    """
    if isinstance(code, str):
        return _explain_code(code, named)
    if code is not None or not named:
        raise UsageError(
            "explain needs something to explain. Give tensors by name, explain(x=x), or code as text, "
            "explain('x.view(-1)', x=x)."
        )
    return _explain_tensors({name: _checked(thing, name) for name, thing in named.items()})


def _checked(thing: Any, name: str) -> Thing:
    is_strided = isinstance(thing, Tensor) and thing.layout is torch.strided
    if is_strided or (isinstance(thing, np.ndarray) and not thing.dtype.hasobject):
        return thing  # type: ignore[no-any-return] # one of the two
    kind = f"{type(thing).__name__} {getattr(thing, 'layout', getattr(thing, 'dtype', ''))}".strip()
    raise UsageError(
        f"{name} is of type {kind}; explain takes strided tensors and NumPy arrays of numbers. "
        "Give one of these, such as x.to_dense(), or code as text: explain('x.view(-1)', x=x)."
    )


def _explain_tensors(given: Mapping[str, Thing]) -> Explanation:
    ledger = Ledger()
    for thing in given.values():
        ledger.label(thing)
    return Explanation(
        code=None,
        tensors=tuple(ledger.facts(thing, name) for name, thing in given.items()),
        sharings=tuple(_sharings(list(given.items()))),
        operations=(),
        notes=(),
        result=None,
    )


def _sharings(given: list[tuple[str, Thing]]) -> list[Sharing]:
    return [
        Sharing(first=name, second=other, is_overlapping=is_overlapping(one, two), is_one=one is two)
        for (name, one), (other, two) in combinations(given, 2)
        if is_same_memory(one, two)
    ]


def _explain_code(code: str, named: Mapping[str, Any]) -> Explanation:
    code = textwrap.dedent(code).strip()
    tensors = {
        name: _checked(value, name)
        for name, value in named.items()
        if isinstance(value, (Tensor, np.ndarray))
    }
    plain = copy.deepcopy({name: value for name, value in named.items() if name not in tensors})
    with undisturbed():
        copies = copy_sharing(tensors)
        tracer = Tracer(Ledger(), Names())
        for name, thing in copies.items():
            tracer.ledger.label(thing)
            tracer.names.give(thing, name)
        value = _run(tracer, code, {"torch": torch, "F": F, "nn": nn, "np": np, **plain, **copies})
        return _explanation(code, tracer, value, has_copies=bool(copies))


def _run(tracer: Tracer, code: str, space: dict[str, Any]) -> Any:
    try:
        return tracer.run(code, space)
    except Exception as error:
        first = (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
        why = why_no_view(tracer.failed) if tracer.failed is not None else ""
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
    return Explanation(
        code=code,
        tensors=tuple(tracer.ledger.facts(thing, name) for name, thing in shown),
        sharings=tuple(_sharings(shown)),
        operations=tuple(operation(event, number, names=names) for number, event in enumerate(events, 1)),
        notes=tuple(notes),
        result=None if results or value is None else textwrap.shorten(repr(value), 80),
    )
