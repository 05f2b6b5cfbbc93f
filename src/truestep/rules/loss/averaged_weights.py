"""Weights of samples or classes are multiplied with a loss that is already averaged.

## What it finds
A loss that is averaged or summed over samples first, and then multiplied with, or divided by, one weight for
each sample, position or class: `(loss.mean() * weights).mean()`. The weights differ from each other, and
there are as many as values that the first average is over. Weights that the loss is computed with, and
weights of several loss terms, are not reported.

## Why it matters
The average of `loss * weights` is then the loss times the average weight. No sample counts more than another:
class weights, importance weights, advantages and masks only scale the learning rate.

## How to fix
Keep one loss for each sample with `reduction="none"`, multiply it with the weights, and average after that.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import OperationGraph, place_of
from truestep.rules.loss._passed import Passed
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass, ClassesScored, NumberWeighted
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS20",
    severity="error",
    needs=(BackwardPass,),
    fix='Compute the loss with reduction="none", multiply it with the weights, and then average.',
)
_CLASSES = frozenset({"aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"})
_LOSSES = frozenset(
    f"aten.{name}.default"
    for name in (
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
    )
)
_AVERAGES = frozenset(
    f"aten.{name}" for name in ("mean.default", "sum.default", "mean.dim", "sum.dim_IntList")
)
_NUMBERS = frozenset(
    f"aten.{name}"
    for name in (
        *("add.Tensor", "sub.Tensor", "rsub.Tensor", "neg.default", "mul.Tensor", "div.Tensor", "mul.Scalar"),
        *("div.Scalar", "add.Scalar", "rsub.Scalar", "_to_copy.default", "clone.default"),
    )
)
"""What makes a number of another one without a curve: their means are still means."""
_MIXED = frozenset({"aten.mul.Tensor", "aten.div.Tensor"})
_VIEWS = ("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "expand", "detach", "alias", "t")
_LEAST_STEPS, _LEAST_ROWS, _MAX_NUMBERS, _MAX_AFTER = 2, 4, 40, 40


class _Product(NamedTuple):
    item: Operation
    average: Operation
    facts: NumberWeighted


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find weights that are applied after the average over what they weigh."""
    flow = evidence.flow
    passed, ignoring = Passed(evidence), _ignoring(evidence)
    found: dict[tuple[str | None, int | None], dict[int, _Product]] = {}
    for moment in evidence.of(NumberWeighted):
        item = flow.at(moment.facts.operation_index)
        if item is None or not passed.goes_through(item):
            continue
        average = _average_before(flow, item)
        is_masked = average is not None and moment.facts.is_binary and average.index in ignoring
        if average is not None and not is_masked and _is_averaged_again(flow, item):
            steps = found.setdefault((item.file, item.line), {})
            steps.setdefault(item.step, _Product(item, average, moment.facts))
    for steps in found.values():
        if len(steps) < _LEAST_STEPS:
            continue
        item, average, facts = steps[min(steps)]
        shape = tuple(_scored_shape(average))
        yield Finding.at(
            item,
            "the loss is already averaged when it is multiplied with these weights: no sample counts more",
            count=len(steps),
            evidence=f"the loss over {shape} is one number {place_of(average, item.file)}; it is "
            f"{'divided by' if 'div' in item.name else 'multiplied with'} {facts.num_weights} weights "
            f"between {facts.lowest:.3g} and {facts.highest:.3g}, and the result is averaged again",
        )


def _ignoring(evidence: Evidence) -> set[int]:
    """Return the losses that ignore some targets: a mask after that changes nothing."""
    flow = evidence.flow
    return {
        moment.facts.operation_index
        for moment in evidence.of(ClassesScored)
        if (item := flow.at(moment.facts.operation_index)) is not None
        if moment.facts.num_scored < prod(item.ins[1].shape)
    }


def _average_before(flow: OperationGraph, item: Operation) -> Operation | None:
    """Return the average or sum that a number comes from, over as many values as there are weights."""
    weights = next(given for given in item.ins if given.shape)
    queue, seen = [given for given in item.ins if not given.shape and given.has_grad], 0
    while queue and seen < _MAX_NUMBERS:
        made, seen = flow.maker(queue.pop()), seen + 1
        if made is None:
            continue
        if made.name in _NUMBERS:
            queue += [given for given in made.ins if not given.shape and given.has_grad]
        elif made.name in _CLASSES | _LOSSES | _AVERAGES and _is_over(flow, made, weights):
            return made
    return None


def _is_over(flow: OperationGraph, average: Operation, weights: In) -> bool:
    """Whether an average is over what there is one weight each for: samples, positions or classes."""
    shape = _scored_shape(average)
    own = tuple(size for size in weights.shape if size > 1)
    if not average.ins[0].has_grad or prod(shape) < _LEAST_ROWS or not own:
        return False
    if average.name in _CLASSES:
        is_class = own == average.ins[0].shape[1:2]
        return is_class or _is_begin(own, shape) or prod(own) == prod(shape)
    if average.name in _AVERAGES:
        before = flow.maker(average.ins[0])
        if before is not None and before.name in _CLASSES and own == before.ins[0].shape[1:2]:
            return True
    return _is_begin(own, shape) or prod(own) == prod(shape) or own == shape[-1:]


def _is_begin(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    large = tuple(size for size in shape if size > 1)
    return own[0] >= _LEAST_ROWS and own == large[: len(own)]


def _scored_shape(average: Operation) -> tuple[int, ...]:
    return average.ins[1].shape if average.name in _CLASSES else average.ins[0].shape


def _is_averaged_again(flow: OperationGraph, item: Operation) -> bool:
    """Whether nothing but an average or a sum is made of the product, or of a linear form of it."""
    queue, seen, num_averages = [item], {item.index}, 0
    while queue and len(seen) < _MAX_AFTER:
        for user in flow.users(queue.pop()):
            if user.index in seen or not _has_gradient(user) or _is_view(user):
                continue
            seen.add(user.index)
            if user.name in _AVERAGES and not user.outs[0].shape:
                num_averages += 1
            elif user.name in _NUMBERS and _is_linear(user):
                queue.append(user)
            else:
                return False
    return num_averages > 0


def _has_gradient(user: Operation) -> bool:
    return any(given.has_grad for given in user.ins) and bool(user.outs)


def _is_view(user: Operation) -> bool:
    """Whether it gives the same values in another shape: views are seen through."""
    name = user.name.split(".")[1]
    return name in (
        "view",
        "reshape",
        "unsqueeze",
        "squeeze",
        "expand",
        "detach",
        "_unsafe_view",
        "t",
        "alias",
    )


def _is_linear(user: Operation) -> bool:
    if user.name in _MIXED and len(user.ins) > 1:
        return sum(given.has_grad for given in user.ins) == 1 and (
            user.name != "aten.div.Tensor" or user.ins[0].has_grad
        )
    return True


BUGGY = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
trust = torch.rand(256)
x = torch.randn(256, 6)
label = x[:, :3].argmax(1)
for step in range(8):
    rows = torch.randint(256, (32,))
    loss = F.cross_entropy(model(x[rows]), label[rows])
    loss = (loss * trust[rows]).mean()  # expect: LOSS20
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
body, heads = nn.Sequential(nn.Linear(6, 16), nn.ReLU()), nn.ModuleList(nn.Linear(16, 2) for _ in range(3))
parameters = [*body.parameters(), *heads.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)
shares = torch.tensor([0.5, 0.3, 0.2])
for step in range(8):
    x = torch.randn(32, 6)
    label = (x[:, :3] > 0).long()
    losses = torch.stack([F.cross_entropy(head(body(x)), label[:, i]) for i, head in enumerate(heads)])
    size = sum(parameter.square().mean() for parameter in parameters)
    loss = (losses * shares).sum() + (size * torch.tensor([1e-3, 1e-4])).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("label[rows])", 'label[rows], reduction="none")')
