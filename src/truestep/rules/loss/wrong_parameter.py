"""A loss or a distribution is given another kind of parameter than it expects.

## What it finds
Labels of 0 and 1 in a loss over the signs -1 and 1: `margin_ranking_loss`, `cosine_embedding_loss`,
`hinge_embedding_loss`, `soft_margin_loss`, a hinge loss. Rates in `poisson_nll_loss`, which takes
logarithms of rates by default, or raw scores in one that takes rates. The exponential of a deviation that is
positive already, as the output of `softplus` is.

Probabilities where scores are expected are found by LOSS01 and LOSS02.

## Why it matters
All of these run. A label of 0 makes the loss a constant, so half of the samples teach nothing. The
exponential of a rate or of a deviation never falls below 1, so small ones cannot be predicted.

## How to fix
Turn labels into signs: `2 * label - 1`. Pass `log_input=False` for rates, and raw scores otherwise. Apply
either `softplus` or `exp` to make a number positive.
"""

from collections.abc import Iterator
from typing import NamedTuple

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import LINEAR, OperationGraph, number_of, place_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass, BinaryGiven, NegativesLogged
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS25",
    severity="error",
    needs=(BackwardPass,),
    fix="Pass what the loss expects: signs of -1 and 1, logarithms of rates, a deviation made positive once.",
)
_POSITIVE = {
    "aten.exp.default": "exp",
    "aten.exp_.default": "exp",
    "aten.softplus.default": "softplus",
    "aten.relu.default": "relu",
    "aten.relu_.default": "relu",
}
_DEVIATIONS = ("aten.exp.default", "aten.softplus.default")
_SAME = frozenset(
    f"aten.{name}.default" for name in ("clone", "_to_copy", "clamp", "clamp_min", "contiguous")
)
_SMALL = 1e-2
_CUTS = frozenset(
    f"aten.{name}.default" for name in ("clamp", "clamp_min", "clamp_", "clamp_min_", "relu", "relu_")
)
_ADDED, _TAKEN = ("aten.add.Tensor", "aten.add.Scalar"), ("aten.rsub.Scalar", "aten.rsub.Tensor")
_LEAST_STEPS, _MAX_SAME = 2, 5
_SIGNS_FIX = "Turn the labels into signs: 2 * label - 1."


class _Found(NamedTuple):
    item: Operation
    message: str
    evidence: str
    fix: str


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find labels, rates and deviations of the wrong kind."""
    flow = evidence.flow
    found: dict[tuple[str | None, int | None, str], dict[int, _Found]] = {}
    for one in (*_signs(evidence), *_rates(evidence), *_doubled(flow)):
        found.setdefault((one.item.file, one.item.line, one.message), {}).setdefault(one.item.step, one)
    for steps in found.values():
        if len(steps) >= _LEAST_STEPS:
            one = steps[min(steps)]
            yield Finding.at(one.item, one.message, count=len(steps), evidence=one.evidence, fix=one.fix)


def _signs(evidence: Evidence) -> Iterator[_Found]:
    """Yield losses over signs whose labels are never -1, at any of the steps looked at."""
    flow = evidence.flow
    binary = {moment.facts.operation_index: moment.facts for moment in evidence.of(BinaryGiven)}
    losses = [(item, name) for item in flow.all if (name := _loss_of(flow, item))]
    others = {(item.file, item.line) for item, _ in losses if item.index not in binary}
    for item, name in losses:
        facts = binary.get(item.index)
        if facts is not None and (item.file, item.line) not in others and facts.num_zeros < facts.num_values:
            yield _Found(
                item,
                f"{name} expects labels of -1 and 1, and gets 0 and 1",
                f"{facts.num_zeros} of {facts.num_values} labels are 0, the others 1; none is -1 at any step "
                "looked at. A label of 0 leaves no sign to learn from",
                _SIGNS_FIX,
            )


def _loss_of(flow: OperationGraph, item: Operation) -> str:
    """Return the loss over signs that an operation is a part of; empty if it is no such part."""
    if item.name == "aten.soft_margin_loss.default" and item.ins[0].has_grad:
        return "soft_margin_loss"
    if item.name in ("aten.eq.Scalar", "aten.ne.Scalar") and number_of(item) == -1:
        return _embedding_loss(flow, item)
    if item.name == "aten.mul.Tensor" and len(item.ins) == 2:
        return _hinge(flow, item)
    return ""


def _embedding_loss(flow: OperationGraph, item: Operation) -> str:
    """Return the loss that compares labels with 1 and with -1, each in a choice of its own, at one line."""
    made = flow.maker(item.ins[0]) if item.ins else None
    beside = flow.users(made) if made is not None else flow.all
    near = [one for one in beside if (one.file, one.line, one.step) == (item.file, item.line, item.step)]
    both = [
        one
        for one in near
        if one.name == item.name and number_of(one) == 1 and abs(one.index - item.index) <= _MAX_SAME
    ]
    chosen = [user for one in (item, *both[:1]) for user in flow.users(one) if user.name == "aten.where.self"]
    sums = [{user.index for user in flow.users(one) if user.name == "aten.add.Tensor"} for one in chosen]
    if len(sums) != 2 or not sums[0] & sums[1]:
        return ""
    return "cosine_embedding_loss" if item.name == "aten.eq.Scalar" else "hinge_embedding_loss"


def _hinge(flow: OperationGraph, item: Operation) -> str:
    """Return the loss in which a product with labels is subtracted from a margin and cut at 0."""
    labels, scores = sorted(item.ins, key=lambda given: given.has_grad)
    if labels.has_grad or not scores.has_grad or labels.shape != scores.shape:
        return ""
    made, difference = flow.maker(labels), flow.maker(scores)
    is_negated = made is not None and made.name == "aten.neg.default"
    is_pair = difference is not None and difference.name == "aten.sub.Tensor" and len(difference.ins) == 2
    for user in flow.users(item):
        # A mask may stand before a difference, where a label stands before a score.
        is_margin = user.name in _ADDED if is_negated else user.name in _TAKEN and number_of(user) == 1
        is_loss = len(user.ins) == 1 and is_margin and is_negated == is_pair
        if is_loss and any(_is_cut(after) for after in _users_of_copies(flow, user)):
            return "margin_ranking_loss" if is_pair else "a hinge loss"
    return ""


def _users_of_copies(flow: OperationGraph, item: Operation) -> list[Operation]:
    users = flow.users(item)
    return [*users, *(one for user in users if user.name == "aten.clone.default" for one in flow.users(user))]


def _is_cut(item: Operation) -> bool:
    words = item.scalars.split(", ")
    return item.name in _CUTS and ("relu" in item.name or (len(words) == 2 and number_of(item) == 0))


def _rates(evidence: Evidence) -> Iterator[_Found]:
    """Yield Poisson losses: `exp(x) - count * x` of a rate, `x - count * log(x)` of raw scores."""
    flow = evidence.flow
    negative = {moment.facts.operation_index: moment.facts for moment in evidence.of(NegativesLogged)}
    for item in flow.named("sub.Tensor", "sub_.Tensor"):
        product = flow.maker(item.ins[1]) if len(item.ins) == 2 else None
        first = flow.maker(item.ins[0]) if product is not None else None
        if product is None or first is None or product.name != "aten.mul.Tensor" or len(product.ins) != 2:
            continue
        counts, given = sorted(product.ins, key=lambda one: one.has_grad)
        if counts.has_grad or not given.has_grad:
            continue
        second = flow.maker(given)
        rate = _before_copies(flow, given)
        is_exponential = first.name == "aten.exp.default" and _is_one(first.ins[0], given)
        if is_exponential and rate is not None and rate.name in _POSITIVE:
            yield _Found(
                item,
                "this Poisson loss expects the logarithm of the rate, and gets the rate",
                f"it computes exp(x) - count * x, and x is the output of {_POSITIVE[rate.name]} "
                f"{place_of(rate, item.file)}: the rate that it scores is exp of that",
                "Pass log_input=False, or pass the raw scores.",
            )
        elif second is not None and second.index in negative and _is_raw_rate(flow, item.ins[0], second):
            facts = negative[second.index]
            yield _Found(
                item,
                "this Poisson loss expects a rate, and gets raw scores",
                f"it computes x - count * log(x), x comes from a linear layer, and {facts.num_negative} of "
                f"{facts.num_values} values are negative",
                "Pass log_input=True for raw scores, or make them positive first with exp or softplus.",
            )


def _is_raw_rate(flow: OperationGraph, given: In, logged: Operation) -> bool:
    """Whether the logarithm is of the same tensor, with little added, and that is a layer's raw output."""
    inner = logged.ins[0]
    added = flow.maker(inner)
    if added is not None and added.name in _ADDED and len(added.ins) == 1:
        inner = added.ins[0]
    made = flow.maker(inner)
    is_log = logged.name == "aten.log.default" and _is_one(inner, given)
    return is_log and made is not None and made.name in LINEAR


def _is_one(one: In, other: In) -> bool:
    return one.producer is not None and one.producer == other.producer and one.shape == other.shape


def _doubled(flow: OperationGraph) -> Iterator[_Found]:
    """Yield exponentials of positive numbers that are the scale of a normal distribution."""
    for item in flow.named("exp.default"):
        rate = _before_copies(flow, item.ins[0]) if item.ins[0].has_grad else None
        if rate is None or rate.name not in _DEVIATIONS or not _is_scale(flow, item):
            continue
        yield _Found(
            item,
            "the deviation of a normal distribution is the exponential of a positive number",
            f"exp of the output of {_POSITIVE[rate.name]} {place_of(rate, item.file)}: "
            "the deviation is never below 1",
            f"Use the output of {_POSITIVE[rate.name]} as the deviation, or exp of the raw scores.",
        )


def _is_scale(flow: OperationGraph, item: Operation) -> bool:
    """Whether noise is multiplied with it, or a log-probability divides by twice its square."""
    for user in flow.users(item):
        if user.name == "aten.mul.Tensor" and len(user.ins) == 2:
            drawn = [flow.maker(given) for given in user.ins if not given.has_grad]
            if any(one is not None and one.name.startswith(("aten.randn", "aten.normal")) for one in drawn):
                return True
        is_square = user.name == "aten.pow.Tensor_Scalar" and number_of(user) == 2
        for twice in flow.users(user) if is_square else []:
            is_double = twice.name == "aten.mul.Tensor" and len(twice.ins) == 1 and number_of(twice) == 2
            if is_double and any(end.name == "aten.div.Tensor" for end in flow.users(twice)):
                return True
    return False


def _before_copies(flow: OperationGraph, given: In) -> Operation | None:
    """Return what made a tensor, before copies, clamping, factors and very small numbers that were added."""
    item = flow.maker(given)
    for _ in range(_MAX_SAME):
        if item is None or not item.ins:
            break
        number = number_of(item) if len(item.ins) == 1 else None
        is_factor = item.name in ("aten.mul.Tensor", "aten.div.Tensor") and number is not None and number > 0
        is_small = item.name in _ADDED and number is not None
        if not (item.name in _SAME or is_factor or (is_small and 0 < (number or 0) <= _SMALL)):
            break
        item = flow.maker(item.ins[0])
    return item


BUGGY = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    one, other = torch.randn(32, 6), torch.randn(32, 6)
    is_better = (one.sum(1) > other.sum(1)).float()
    first, second = model(one).squeeze(1), model(other).squeeze(1)
    loss = F.margin_ranking_loss(first, second, is_better, margin=0.2)  # expect: LOSS25
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    x = torch.randn(32, 6)
    count = torch.poisson((0.3 * x[:, 0]).exp())
    is_valid = (torch.rand(32) < 0.8).float()
    raw, more = model(x).unbind(1)
    loss = F.poisson_nll_loss(F.softplus(raw), count, log_input=False) + F.poisson_nll_loss(more, count)
    gap = is_valid * (raw - more)
    loss = loss + (is_valid * F.relu(0.1 - gap)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("is_better, margin", "2 * is_better - 1, margin")
