"""Factors that are all zero: parameters of which none can move, because each waits for another one.

Owns finding parameters whose weights and gradients are zero at every step looked at, and the experiment with
a copy of the model: one of them is changed alone, then all are changed together.
"""

import weakref
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.evidence.facts.optimizing import FactorsZero
from truestep.watch.evidence.kinds import Facts, named
from truestep.watch.evidence.moment import unnamed
from truestep.watch.inspect.probe.apart import ApartError, run_apart
from truestep.watch.inspect.probe.copies import copy_inputs, is_large, replicate, run
from truestep.watch.script import parts
from truestep.watch.script.leaves import find_tensors
from truestep.watch.script.refs import Ref
from truestep.watch.script.tape import Tape

_LEAST_LOOKS = 3
_MAX_FACTORS, _MAX_PROBES, _MAX_KNOWN = 8, 4, 4096
_SIZE = 0.25


def watch(tape: Tape) -> None:
    """Look for such parameters at the first steps, and at those after a change."""
    factors = _Factors(tape)
    tape.attend(factors, "step_begins", "forward_begins", near=True)
    tape.attend(factors, "closing")


@dataclass
class _Zero:
    """A parameter that was zero without a gradient at each step looked at."""

    parameter: "weakref.ref[Tensor]"
    optimizer: int
    num_looks: int = 0


@dataclass
class _Question:
    model: "weakref.ref[nn.Module]"
    number: int
    given: tuple[Any, Any]
    site: int
    paths: dict[str, int]


class _Factors:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._zeros: dict[int, _Zero] = {}
        self._alive: dict[int, weakref.ref[Tensor]] = {}
        """Parameters that have had a weight or a gradient."""
        self._question: _Question | None = None
        self._asked: set[tuple[int, ...]] = set()
        self._answers: list[tuple[FactorsZero, list[int], int]] = []

    def step_begins(self, optimizer: Optimizer, number: int) -> None:
        for parameter in [item for group in optimizer.param_groups for item in group["params"]]:
            known = self._alive.get(id(parameter))
            if known is not None and known() is parameter:
                continue
            if _is_zero(parameter):
                zero = self._zeros.get(id(parameter))
                if zero is None or zero.parameter() is not parameter:
                    zero = self._zeros[id(parameter)] = _Zero(Ref(parameter), number)
                zero.num_looks += 1
                if zero.num_looks == _LEAST_LOOKS:
                    self._tape.come_near(2)
            elif len(self._alive) < _MAX_KNOWN:
                self._alive[id(parameter)] = Ref(parameter)
                self._zeros.pop(id(parameter), None)

    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        ready = {key for key, zero in self._zeros.items() if zero.num_looks >= _LEAST_LOOKS}
        if len(ready) < 2 or self._question is not None or len(self._asked) >= _MAX_PROBES:
            return
        paths = {path: id(item) for path, item in parts.named_parameters(model) if id(item) in ready}
        key = tuple(paths.values())[:_MAX_FACTORS]
        is_free = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if len(key) < 2 or key in self._asked or not is_free or is_large(model):
            return
        self._asked.add(key)
        tensors = [*parts.parameters(model), *(leaf for _, leaf in find_tensors((args, kwargs)))]
        if not all(item.is_cpu for item in tensors):
            return
        try:
            given = copy_inputs((args, kwargs))
        except TypeError:
            return
        number, site = self._tape.number("model", model), self._tape.sites.here(1)
        few = dict(list(paths.items())[:_MAX_FACTORS])
        self._question = _Question(weakref.ref(model), number, given, site, few)
        self._tape.attend(self, "counted")

    def counted(self) -> None:
        self._tape.ignore(self.counted)
        question, self._question = self._question, None
        model = question.model() if question is not None else None
        if question is None or model is None:
            return
        try:
            with self._tape.under_way.copying():
                found = run_apart(partial(_probe, model, question))
        except ApartError as error:
            self._tape.note_trouble("a probe", error)
            return
        for name, values in found:
            facts: Any = unnamed(name, values)
            self._answers.append((facts, [question.paths[path] for path in facts.paths], question.site))

    def closing(self) -> None:
        for facts, keys, site in self._answers:
            zeros = [self._zeros.get(key) for key in keys]
            still = [zero for zero in zeros if zero is not None and _is_still_zero(zero.parameter())]
            if len(still) == len(keys):
                num_steps = min(zero.num_looks for zero in still)
                whole = facts._replace(optimizer=still[0].optimizer, num_steps=num_steps)
                self._tape.mark(whole, site, perf_counter_ns())


def _is_zero(parameter: Tensor) -> bool:
    """Whether all weights and all gradients are zero; no if that cannot be read."""
    gradient = parameter.grad
    if not parts.is_plain(parameter) or not parameter.requires_grad or not parts.is_plain(gradient):
        return False
    if not parameter.is_cpu or not parameter.numel() or gradient is None:
        return False
    return (
        not bool(parameter.detach().reshape(-1)[0]) and not bool(parameter.any()) and not bool(gradient.any())
    )


def _is_still_zero(parameter: Tensor | None) -> bool:
    return parameter is None or not bool(parameter.any())


def _probe(model: nn.Module, question: _Question) -> list[tuple[str, Facts]]:
    """Change each factor alone, and then all together: a product notices only the second."""
    replica = replicate(model)
    if replica is None:
        return []
    found = dict(parts.named_parameters(replica))
    own = {path: found[path] for path in question.paths if path in found}
    with torch.no_grad():
        plain = _outputs(replica, question.given)
        if not plain or not _is_same(plain, _outputs(replica, question.given)):
            return []
        values = {path: _draw(item) for path, item in own.items()}

        def outputs(changed: list[str], sign: float = 1.0) -> list[Tensor]:
            for path, item in own.items():
                item.copy_(sign * values[path]) if path in changed else item.zero_()
            return _outputs(replica, question.given)

        inert = [path for path in own if all(_is_same(plain, outputs([path], sign)) for sign in (1.0, -1.0))]
        together = outputs(inert)
        if len(inert) < 2 or _is_same(plain, together):
            return []
        bound = [
            path
            for path in inert
            if not _is_same(together, outputs([item for item in inert if item != path]))
        ]
        moved = outputs(bound)
        if len(bound) < 2 or _is_same(plain, moved):
            return []
        change = max(float((two - one).abs().max()) for one, two in zip(plain, moved, strict=True))
    shapes = {path: list(own[path].shape) for path in bound}
    return [named(FactorsZero(question.number, 0, bound, list(shapes.values()), 0, change))]


def _draw(item: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(item.numel())
    return (_SIZE * torch.randn(item.shape, generator=generator)).to(item.dtype)


def _outputs(replica: nn.Module, given: tuple[Any, Any]) -> list[Tensor]:
    return [leaf for _, leaf in find_tensors(run(replica, given)) if leaf.is_floating_point()]


def _is_same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
