"""A contrastive loss compares each sample with itself.

## What it finds
A softmax over the similarities of all samples of a batch with the same samples, in a loss that looks for each
sample's partner, where the similarity of each sample with itself is not masked. Also such a loss whose target
is the sample itself. Similarities between two views of the samples are not reported.

## Why it matters
Nothing is as similar to a sample as the sample itself. As a negative, its own similarity dominates the
softmax and weakens all gradients. As the target, it makes the task trivial, and nothing brings two views of a
sample together.

## How to fix
Mask the diagonal before the softmax: `similarity.fill_diagonal_(float("-inf"))`. If the target is the sample
itself, compare with the other view instead: `first @ second.T`.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import OperationGraph, place_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass, ItselfCompared, OwnPlacesScored
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS22",
    severity="error",
    needs=(BackwardPass,),
    caused_by=("DATA13",),
    fix='Mask the diagonal before the softmax: similarity.fill_diagonal_(float("-inf")).',
)
_FIX_TARGET = "Compare with the other view of each sample, first @ second.T, or mask the diagonal."
_SCORED = frozenset({"aten.nll_loss_forward.default"})
_COMPARISONS = frozenset(
    f"aten.{name}" for name in ("eq.Tensor", "eq.Scalar", "ne.Tensor", "eye.default", "eye.m")
)
_SOFT = frozenset({"aten._softmax.default", "aten.exp.default", "aten.sigmoid.default"})
_CHOOSING = frozenset(
    f"aten.{name}" for name in ("gather.default", "index.Tensor", "diagonal.default", "masked_select.default")
)
_SAME = frozenset(f"aten.{name}" for name in ("clone.default", "clamp.default", "clamp_min.default"))
_DIFFERENCES = frozenset({"aten.sub.Tensor", "aten.add.Tensor"})
_LEAST_STEPS, _MAX_AFTER = 2, 12


class _Found(NamedTuple):
    softmax: Operation
    is_target: bool
    facts: ItselfCompared


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find softmaxes over similarities of samples with themselves."""
    flow = evidence.flow
    own = {
        moment.facts.operation_index: moment.facts.num_own == moment.facts.num_samples
        for moment in evidence.of(OwnPlacesScored)
    }
    found: dict[tuple[str | None, int | None], dict[int, _Found]] = {}
    for moment in evidence.of(ItselfCompared):
        item = flow.at(moment.facts.operation_index)
        if item is None or not _is_of_data(flow, item):
            continue
        losses = [user for user in flow.users(item) if user.name in _SCORED]
        total = item if losses else _softmax_of(flow, item)
        if total is not None:
            is_target = any(own.get(loss.index, False) for loss in losses)
            steps = found.setdefault((total.file, total.line), {})
            steps.setdefault(total.step, _Found(total, is_target, moment.facts))
    for steps in found.values():
        if len(steps) < _LEAST_STEPS:
            continue
        item, is_target, facts = steps[min(steps)]
        before = flow.maker(item.ins[0])
        yield Finding.at(
            item,
            "each sample's target is the sample itself"
            if is_target
            else "the softmax of the loss includes the similarity of each sample with itself",
            count=len(steps),
            evidence=f"the similarities of {facts.num_samples} samples with each other are the same in both "
            f"directions, and no place is masked: a sample has {facts.own:.3g} with itself and "
            f"{facts.others:.3g} with others on average"
            + (
                f"; they come from {before.name.split('.')[1]} {place_of(before, item.file)}"
                if before is not None
                else ""
            ),
            fix=_FIX_TARGET if is_target else None,
        )


def _is_of_data(flow: OperationGraph, item: Operation) -> bool:
    """Whether samples went into the similarities, and not weights alone."""
    before = flow.before(item.ins[0], _with_gradient)
    return any(not given.has_grad and len(given.shape) > 0 for made in before for given in made.ins)


def _with_gradient(operation: Operation) -> list[In]:
    return [given for given in operation.ins if given.has_grad]


def _softmax_of(flow: OperationGraph, item: Operation) -> Operation | None:
    """Return the sum in the logarithm of a softmax, of which a mask or an index chooses the partners."""
    if item.name == "aten._log_softmax.default":
        return item if _is_chosen_from(flow, item) else None
    rows = item.ins[0].shape[0]
    for total in [item] if item.name == "aten.logsumexp.default" else _sums_of(flow, item):
        for end in _differences(flow, total, is_log=total is item):
            if _size(end) == rows or _is_chosen_from(flow, end):
                return total
    return None


def _sums_of(flow: OperationGraph, item: Operation) -> list[Operation]:
    rows = item.ins[0].shape[0]
    if item.name != "aten.exp.default":
        return []
    return [
        user
        for user in flow.users(item)
        if user.name == "aten.sum.dim_IntList" and user.outs and _size(user) == rows
    ]


def _size(item: Operation) -> int:
    return prod(item.outs[0].shape) if item.outs else 0


def _differences(flow: OperationGraph, total: Operation, *, is_log: bool) -> Iterator[Operation]:
    """Yield what the logarithm of a sum is subtracted from, or the logarithm of what it divides."""
    queue, seen = [(total, is_log)], 0
    while queue and seen < _MAX_AFTER:
        item, has_log = queue.pop()
        seen += 1
        for user in flow.users(item):
            is_pair = len(user.ins) == 2 and all(given.has_grad for given in user.ins)
            if user.name in _SAME or (user.name in _DIFFERENCES and len(user.ins) == 1 and not has_log):
                is_less = user.name == "aten.sub.Tensor"  # what a sample has with itself is taken away again
                queue += [] if is_less else [(user, has_log)]
            elif user.name == "aten.log.default" and not has_log:
                queue.append((user, True))
            elif has_log and user.name in _DIFFERENCES and is_pair:
                yield user
            elif is_pair and user.name == "aten.div.Tensor" and user.ins[1].producer == item.index:
                yield from (end for end in flow.users(user) if end.name == "aten.log.default" and not has_log)


def _is_chosen_from(flow: OperationGraph, item: Operation) -> bool:
    """Whether an index or a mask chooses some of the values, and not the probabilities of another model."""
    for user in flow.users(item):
        if user.name in _CHOOSING:
            return True
        others = [given for given in user.ins if not given.has_grad]
        if user.name == "aten.mul.Tensor" and others:
            names = {made.name for made in flow.before(others[0], limit=40)}
            if names & _COMPARISONS and not names & _SOFT:
                return True
    return False


BUGGY = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for step in range(6):
    x = torch.randn(16, 8)
    views = torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])
    places = F.normalize(encoder(views), dim=1)
    similarity = places @ places.T / 0.2
    partner = torch.arange(32).roll(16)
    loss = F.cross_entropy(similarity, partner)  # expect: LOSS22
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for step in range(6):
    x = torch.randn(16, 8)
    views = torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])
    first, second = F.normalize(encoder(views), dim=1).chunk(2)
    similarity = first @ second.T / 0.2
    loss = F.cross_entropy(similarity, torch.arange(16))
    spread = (first @ first.T / 0.2).softmax(1) @ first  # every sample attends to itself too
    loss = loss + 0.1 * F.mse_loss(spread, second)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("/ 0.2\n", '/ 0.2\n    similarity = similarity.fill_diagonal_(float("-inf"))\n')
