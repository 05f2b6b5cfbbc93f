"""An average of weights takes nearly all of the newest ones: its decay is at the wrong term.

## What it finds
An exponential moving average of a model's weights, or a target network that follows softly, where the same
factor of 0.9 or more is applied to the current weights at each update and the rest to the average. The factor
stands in the script as a number. Averages whose decay is still warming up are not reported, and neither are
targets that are copied.

## Why it matters
The average is the last weights with a little noise. It smooths nothing, evaluations of it are those of the
model, and a target network changes as fast as the network that it should steady.

## How to fix
Multiply the average by the decay and the weights by the rest: `average.mul_(0.999).add_(p, alpha=0.001)`, or
`average.lerp_(p, 0.001)`.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isclose

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import OperationGraph, number_of
from truestep.rules.analysis.syntax import walk
from truestep.watch import Operation
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.structure import AverageKept
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="PAR23",
    severity="error",
    needs=(OptimizerStep,),
    fix="Multiply the average by the decay, and the current weights by 1 - decay.",
)
_LEAST_SHARE, _TOLERANCE, _LEAST_STEPS = 0.9, 1e-6, 2
_MAX_DEPTH = 8
_LERPS = ("lerp.Scalar", "lerp_.Scalar", "_foreach_lerp.Scalar", "_foreach_lerp_.Scalar")
_SUMS = ("add.Tensor", "add_.Tensor", "_foreach_add.List", "_foreach_add_.List")
_DIFFERENCES = ("sub.Tensor", "sub_.Tensor", "_foreach_sub.List", "_foreach_sub_.List")
_PRODUCTS = ("mul.Tensor", "mul_.Tensor", "mul.Scalar", "_foreach_mul.Scalar", "_foreach_mul_.Scalar")
_COPIES = ("copy_.default", "clone.default", "_to_copy.default")
_ALPHA = re.compile(r"alpha=([^,\s]+)$")
_NUMBER = re.compile(r"0?\.\d+")
Place = tuple[str | None, int | None]
Key = tuple[int | None, int, bool]
"""Who made a tensor, its place in a list, and whether it needs a gradient if its maker is not known."""
Sum = dict[Key, float]
"""A tensor as a sum of others: the factor of each."""


@dataclass(frozen=True)
class _Update:
    """An update of one tensor of an average."""

    operation: Operation
    average: Key
    weights: Key
    share: float
    """The factor of the weights."""

    @property
    def place(self) -> Place:
        return self.operation.file, self.operation.line


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find averages that take the same large share of the current weights at each update."""
    flow = evidence.flow
    by_torch = {
        (site.file, site.line)
        for moment in evidence.of(AverageKept)
        if (site := moment.facts.updated_at) is not None
    }
    series: dict[tuple[Place, Key], list[_Update]] = {}
    for update in _find_updates(flow):
        series.setdefault((update.place, update.weights), []).append(update)
    found: dict[Place, list[list[_Update]]] = {}
    for (place, _), updates in series.items():
        is_lasting = _is_series(flow, updates) or _is_among(flow, updates[0], by_torch)
        if is_lasting and updates[0].operation.line and _is_written(evidence, updates[0].share):
            found.setdefault(place, []).append(updates)
    for tensors in found.values():
        share = tensors[0][0].share
        yield Finding.at(
            tensors[0][0].operation,
            "the average takes nearly all of the current weights at each update: the decay is swapped",
            count=max(map(len, tensors)),
            evidence=f"each update computes {1 - share:.6g} * average + {share:.6g} * weights, for "
            f"{len(tensors)} of the tensors; the larger factor belongs to the average",
        )


def _is_among(flow: OperationGraph, update: _Update, places: set[tuple[str, int]]) -> bool:
    """Whether an average of torch's is updated by it; the first update of those is a copy."""
    after = [update.operation, *flow.users(update.operation)]
    return any((item.file, item.line) in places for item in after)


def _is_series(flow: OperationGraph, updates: list[_Update]) -> bool:
    """Whether each update goes on from what the one before it gave, with the same share, in another step."""
    if len(updates) < _LEAST_STEPS:
        return False
    for before, after in pairwise(updates):
        made = None if after.average[0] is None else flow.at(after.average[0])
        if made is not None and made.name == "aten.copy_.default" and len(made.ins) > 1:
            made = flow.maker(made.ins[1])
        is_next = made is before.operation and after.operation.step > before.operation.step
        if not is_next or not isclose(before.share, after.share, rel_tol=1e-9):
            return False
    return True


def _is_written(evidence: Evidence, share: float) -> bool:
    """Whether the share or the rest of it is a number of the script's: a decay that warms up is computed."""
    written = [
        node.value
        for source in evidence.sources
        for node in walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, float)
    ]
    words = [word.rpartition("=")[2] for word in evidence.first.argv]
    written += [float(word) for word in words if _NUMBER.fullmatch(word)]
    return any(isclose(number, part, rel_tol=1e-9) for number in written for part in (share, 1 - share))


def _find_updates(flow: OperationGraph) -> Iterator[_Update]:
    """Yield what adds a tensor of weights to another one, by factors that sum to 1."""
    weights = _weights_of(flow)
    for item in flow.named(*_LERPS, *_SUMS, *_DIFFERENCES):
        is_list = "_foreach" in item.name
        for place in range(len(item.ins) // 2 if is_list else 1):
            parts = _sum_of(flow, item, place, item.step)
            if parts is None or len(parts) != 2 or not isclose(sum(parts.values()), 1, abs_tol=_TOLERANCE):
                continue
            (average, rest), (current, share) = sorted(parts.items(), key=lambda pair: pair[1])
            if rest > _TOLERANCE and share > _LEAST_SHARE - _TOLERANCE and _is_weight(current, weights):
                yield _Update(item, average, current, share)


def _weights_of(flow: OperationGraph) -> set[int]:
    """Return what made, before training, that which layers use and train."""
    given = (one for item in flow.all if item.phase == "forward" for one in item.ins if one.has_grad)
    makers = (flow.maker(one) for one in given)
    return {maker.index for maker in makers if maker is not None and maker.phase == "setup"}


def _is_weight(key: Key, weights: set[int]) -> bool:
    return key[2] if key[0] is None else key[0] in weights


def _sum_of(flow: OperationGraph, item: Operation, place: int, step: int, depth: int = 0) -> Sum | None:
    """Return what an operation gave, as a sum of what was there before its step; None if it is none."""
    terms = _terms(item, place)
    if terms is None:
        return None
    found: Sum = {}
    for given, factor in terms:
        maker = flow.maker(given)
        parts = None
        if maker is not None and maker.step == step and maker.phase != "setup" and depth < _MAX_DEPTH:
            parts = _sum_of(flow, maker, place, step, depth + 1)
        if parts is None:
            at = place if maker is not None and "_foreach" in maker.name else 0
            parts = {(given.producer, at, given.producer is None and given.has_grad): 1.0}
        for key, share in parts.items():
            found[key] = found.get(key, 0.0) + factor * share
    return found


def _terms(item: Operation, place: int) -> list[tuple[In, float]] | None:
    """Return the tensors that an operation adds, each with its factor; None if it does something else."""
    name, ins = item.name.removeprefix("aten."), item.ins
    if "_foreach" in name:  # one of the tensors in a list, and its partner in a second one
        half = len(ins) if name in _PRODUCTS else len(ins) // 2
        ins = ins[place::half] if place < half else ()
    if name in _COPIES:
        return [(ins[-1], 1.0)] if ins else None
    if name in _PRODUCTS:
        factor = number_of(item) if len(ins) == 1 else None
        return None if factor is None else [(ins[0], factor)]
    if len(ins) != 2 or ins[0].shape != ins[1].shape:
        return None
    if name in _LERPS:
        weight = number_of(item)
        return None if weight is None else [(ins[0], 1 - weight), (ins[1], weight)]
    if name in _SUMS + _DIFFERENCES:
        found = _ALPHA.search(item.scalars)
        factor = float(found[1]) if found else 1.0
        return [(ins[0], 1.0), (ins[1], -factor if name in _DIFFERENCES else factor)]
    return None


BUGGY = """
import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
average = copy.deepcopy(model)
decay = 0.99
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old, new in zip(average.parameters(), model.parameters()):
            old.mul_(1 - decay).add_(new, alpha=decay)  # expect: PAR23
"""

CLEAN = """
import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
average, target = copy.deepcopy(model), copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    decay = min(0.999, step / 500)
    with torch.no_grad():
        for old, new in zip(average.parameters(), model.parameters()):
            old.mul_(decay).add_(new, alpha=1 - decay)  # it warms up
        for old, new in zip(target.parameters(), model.parameters()):
            old.mul_(0.999).add_(new, alpha=0.001)
"""

FIXED = BUGGY.replace(
    "old.mul_(1 - decay).add_(new, alpha=decay)  # expect: PAR23",
    "old.mul_(decay).add_(new, alpha=1 - decay)",
)
