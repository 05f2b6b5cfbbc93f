"""Terms of the loss count several times, because a running sum is added up again.

## What it finds
Losses of one line that enter the gradients of a step with falling weights: the first of three counts three
times, the second twice, the last once. A running sum is added to another sum in each round, or `backward()`
is called on the running sum in each round. Weights that the script writes as numbers are not reported. A sum
that reaches back into earlier steps is reported as LOOP13.

## Why it matters
The order of the data decides how much a sample weighs. The gradient is several times too large, and more so
the more rounds a step has.

## How to fix
Add each term once: call `backward()` on the loss of the round, or add the round's own loss to the total.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import isclose

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import OperationGraph, number_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS24",
    severity="error",
    needs=(BackwardPass, OptimizerStep),
    caused_by=("LOOP13",),
    fix="Add each loss once: call backward() on the round's own loss, or add only that to the total.",
)
_LEAST_TERMS, _LEAST_STEPS, _MAX_TERMS = 3, 2, 512
_SUMS = ("aten.add.Tensor", "aten.add_.Tensor")
_SCALES = ("aten.mul.Tensor", "aten.div.Tensor", "aten.mul.Scalar", "aten.div.Scalar")
Site = tuple[str | None, int | None]


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find steps whose losses have falling weights."""
    flow = evidence.flow
    asked = {(item.file, item.line) for item in evidence.of(BackwardPass) if item.facts.how == "grad"}
    roots: dict[int, list[Operation]] = {}
    for begin in flow.named("ones_like.default"):  # the gradient that a backward pass begins with
        root = flow.maker(begin.ins[0]) if begin.ins and begin.ins[0].has_grad else None
        if root is not None and root.step == begin.step and (begin.file, begin.line) not in asked:
            roots.setdefault(begin.step, []).append(root)
    found: dict[Site, dict[int, int]] = {}
    for step, items in roots.items():
        num = _num_repeated(flow, items)
        if num:
            site = _unscaled(flow, items[-1])[0]
            found.setdefault((site.file, site.line), {})[step] = num
    for (file, line), steps in found.items():
        if len(steps) >= _LEAST_STEPS and line is not None:
            num = steps[min(steps)]
            yield Finding(
                message=f"the first of {num} losses counts {num} times: a running sum is added up again",
                file=file,
                line=line,
                step=min(steps) + 1,
                count=len(steps),
                evidence=f"the gradients of a step contain {num} losses of one line with the weights "
                f"{', '.join(str(num - place) for place in range(min(num, 4)))}"
                f"{', ..., 1' if num > 4 else ''}; expected 1 for each",
            )


def _num_repeated(flow: OperationGraph, roots: list[Operation]) -> int:
    """Return how many losses of one line have the weights n, n - 1, ..., 1; 0 if there are none."""
    weights: dict[int, float] = {}
    for root in roots:
        top, factor = _unscaled(flow, root)
        for index, weight in _terms_of(flow, top).items():
            weights[index] = weights.get(index, 0.0) + factor * weight
    lines: dict[tuple[str | None, int | None, str], list[float]] = {}
    for index in sorted(weights):
        item = flow.at(index)
        if item is not None:
            lines.setdefault((item.file, item.line, item.name), []).append(weights[index])
    for found in lines.values():
        unit = found[-1]
        falls = [one - other for one, other in pairwise(found)]
        is_falling = all(isclose(fall, unit, rel_tol=1e-6) for fall in falls) and unit > 0
        if len(found) >= _LEAST_TERMS and is_falling:
            return len(found)
    return 0


def _unscaled(flow: OperationGraph, item: Operation) -> tuple[Operation, float]:
    """Return the sum that was multiplied or divided by a number, and that factor."""
    factor = 1.0
    while item.name in _SCALES and len(item.ins) == 1:
        number, maker = number_of(item), flow.maker(item.ins[0])
        if not number or maker is None:
            break
        factor *= 1 / number if ".div" in item.name else number
        item = maker
    return item, factor


def _terms_of(flow: OperationGraph, top: Operation) -> dict[int, float]:
    """Return how often each term is in a sum of single numbers."""
    counts: dict[int, float] = {top.index: 1.0}
    terms: dict[int, float] = {}
    while counts and len(terms) < _MAX_TERMS:
        index = max(counts)
        count, item = counts.pop(index), flow.at(index)
        makers = [] if item is None else [flow.maker(given) for given in _added(item)]
        if not makers or any(maker is None or maker.step != top.step for maker in makers):
            terms[index] = terms.get(index, 0.0) + count
            continue
        for maker in makers:
            if maker is not None:
                counts[maker.index] = counts.get(maker.index, 0.0) + count
    return terms


def _added(item: Operation) -> list[In]:
    """Return what a sum of single numbers adds, as far as it has a gradient."""
    is_sum = item.name in _SUMS and "alpha" not in item.scalars
    is_single = all(given.shape == () for given in item.ins)
    return [given for given in item.ins if given.has_grad] if is_sum and is_single else []


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    total = 0.0
    for part in range(4):
        x = torch.randn(16, 8)
        loss = (model(x) - x[:, :1]).square().mean()
        total = total + loss / 4  # expect: LOSS24
        total.backward(retain_graph=True)
    optimizer.step()
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    total = 0.0
    for part in range(4):
        x = torch.randn(16, 8)
        loss = (model(x) - x[:, :1]).square().mean()
        total = total + (4 - part) * loss  # weights that are meant
    total.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("total = total + loss / 4  # expect: LOSS24", "total += loss.item() / 4").replace(
    "total.backward(retain_graph=True)", "(loss / 4).backward()"
)
