"""The target of temporal-difference learning is not detached, and learns too.

## What it finds
An error between a network's estimate and `reward + discount * estimate_of_next_state`, where both estimates
come from the same weights and gradients flow into both. A target that is detached, computed without
gradients, or given by another network, is not reported.

## Why it matters
The target should stay fixed while the estimate moves towards it. With a gradient through both, the network
also moves the target towards the estimate: it lowers the error by making later states agree with earlier
ones. Values are learned slowly or wrongly, and the loss still falls.

If you minimize the residual on purpose, ignore this finding.

## How to fix
Compute the target under `torch.no_grad()`, or detach it: `reward + discount * values.detach()`.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import LINEAR, OperationGraph, number_of, place_of
from truestep.rules.loss._passed import Passed
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS28",
    severity="warning",
    needs=(BackwardPass,),
    caused_by=("PROBE03",),
    fix="Compute the target under torch.no_grad(), or detach it.",
)
_ERRORS = frozenset(
    f"aten.{name}.default" for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss")
)
_CURVES = frozenset(
    f"aten.{name}"
    for name in (
        "pow.Tensor_Scalar",
        "square.default",
        "abs.default",
        "mul.Tensor",
        "linalg_vector_norm.default",
    )
)
_GATHERING = frozenset(
    f"aten.{name}"
    for name in (
        "stack.default",
        "cat.default",
        "clone.default",
        "_to_copy.default",
        "index.Tensor",
        "neg.default",
    )
)
_FACTORS = ("aten.mul.Tensor", "aten.mul.Scalar")
_LEAST_DISCOUNT, _LEAST_STEPS, _MAX_BACK, _MAX_FACTORS = 0.5, 2, 60, 6
_LAYERS = LINEAR | {"aten.embedding.default"}


class _Target(NamedTuple):
    total: Operation
    """The sum of a reward and of the next estimate."""
    reward: In | None
    value: In
    """The next estimate, before the discount."""
    discount: float


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find errors between two estimates of one network of which one is a discounted later one."""
    flow, passed = evidence.flow, Passed(evidence)
    found: dict[tuple[str | None, int | None], dict[int, tuple[Operation, _Target]]] = {}
    for error in flow.all:
        if not _is_error(flow, error) or not passed.goes_through(_ended_by(flow, error)):
            continue
        for estimate, other in (error.ins[:2], error.ins[1::-1]):
            target = _target_of(flow, other)
            if target is not None and _weights_of(flow, estimate) & _weights_of(flow, target.value):
                steps = found.setdefault((target.total.file, target.total.line), {})
                steps.setdefault(target.total.step, (error, target))
    for steps in found.values():
        if len(steps) < _LEAST_STEPS:
            continue
        error, target = steps[min(steps)]
        yield Finding.at(
            target.total,
            "the target of this estimate is not detached: gradients flow through the next state's value",
            count=len(steps),
            evidence=f"a {'reward' if target.reward is None else 'tensor without gradient'} plus "
            f"{target.discount:.4g} times an output with a gradient is compared with an output of the same "
            f"weights {place_of(error, target.total.file)}, and the backward pass goes through both",
        )


def _is_error(flow: OperationGraph, item: Operation) -> bool:
    """Whether it compares two values that both have a gradient."""
    if len(item.ins) < 2 or not all(given.has_grad for given in item.ins[:2]):
        return False
    if item.name in _ERRORS:
        return True
    return item.name == "aten.sub.Tensor" and _ended_by(flow, item) is not item


def _ended_by(flow: OperationGraph, item: Operation) -> Operation:
    """Return what makes an error of a difference, or the operation itself."""
    if item.name in _ERRORS:
        return item
    queue = [item]
    for _ in range(_MAX_FACTORS):
        for one in queue:
            for user in flow.users(one):
                is_own = user.name != "aten.mul.Tensor" or (len(user.ins) == 2 and user.ins[0] == user.ins[1])
                if user.name in _CURVES and is_own and user.ins[0].has_grad:
                    return user
                if user.name in _ERRORS:  # compared with zeros
                    return user
        queue = [user for one in queue for user in flow.users(one) if user.name in _GATHERING]
    return item


def _target_of(flow: OperationGraph, given: In) -> _Target | None:
    """Return the sum of a reward and a discounted output that a tensor is, or is stacked of."""
    queue, num = [given], 0
    while queue and num < _MAX_BACK:
        one, num = queue.pop(0), num + 1
        item = flow.maker(one) if one.has_grad else None
        if item is None:
            continue
        if item.name in _GATHERING:
            queue += item.ins
        elif item.name in ("aten.add.Tensor", "aten.add_.Tensor") and "alpha" not in item.scalars:
            found = _as_target(flow, item)
            if found is not None:
                return found
    return None


def _as_target(flow: OperationGraph, item: Operation) -> _Target | None:
    loose = [given for given in item.ins if not given.has_grad]
    tied = [given for given in item.ins if given.has_grad]
    size = prod(item.outs[0].shape) if item.outs else 0
    # A reward may be a number where transitions come one by one.
    if len(tied) != 1 or len(loose) > 1 or (not loose and size > 1) or not _is_column(item):
        return None
    value, factor = _discounted(flow, tied[0])
    if value is None or not _LEAST_DISCOUNT < factor < 1:
        return None
    if loose and _is_complement(flow, loose[0], factor):
        return None
    return _Target(item, loose[0] if loose else None, value, factor)


def _is_column(item: Operation) -> bool:
    """Whether it has one value for each sample."""
    return bool(item.outs) and sum(length > 1 for length in item.outs[0].shape) <= 1


def _discounted(flow: OperationGraph, given: In) -> tuple[In | None, float]:
    """Return what is multiplied with one number, and maybe with masks, and that number."""
    factor, numbers, one = 1.0, 0, given
    for _ in range(_MAX_FACTORS):
        item = flow.maker(one)
        if item is None or item.name not in _FACTORS:
            break
        tied = [other for other in item.ins if other.has_grad]
        if len(tied) != 1:
            return None, 0.0
        if len(item.ins) == 1:
            number = number_of(item)
            if number is None:
                return None, 0.0
            factor, numbers = factor * number, numbers + (number != 1)
        else:
            scaled = flow.maker(next(other for other in item.ins if not other.has_grad))
            if scaled is not None and scaled.name in _FACTORS and len(scaled.ins) == 1:
                number = number_of(scaled)  # discount * (1 - done), before the values
                factor, numbers = factor * (number or 1.0), numbers + 1
        one = tied[0]
    return (one, factor) if numbers == 1 else (None, 0.0)


def _is_complement(flow: OperationGraph, given: In, factor: float) -> bool:
    """Whether the other part of the sum has the rest of the weight: a mixture, and no reward."""
    item = flow.maker(given)
    number = number_of(item) if item is not None and item.name in _FACTORS and len(item.ins) == 1 else None
    return number is not None and abs(number + factor - 1) < 1e-6


def _weights_of(flow: OperationGraph, given: In) -> set[tuple[int, tuple[int, ...]]]:
    """Return the weights of the layers that a tensor was computed by."""
    found = set()
    for item in flow.before(given):
        if item.name in _LAYERS:
            found |= {
                (one.producer, tuple(sorted(one.shape)))
                for one in item.ins
                if one.producer is not None and one.has_grad and _is_weight(flow, one)
            }
    return found


def _is_weight(flow: OperationGraph, given: In) -> bool:
    """Whether a tensor was made before training, or is no result of what has a gradient."""
    made = flow.maker(given)
    return made is not None and (made.phase == "setup" or not any(one.has_grad for one in made.ins))


BUGGY = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    state, successor = torch.randn(32, 4), torch.randn(32, 4)
    action, reward = torch.randint(2, (32, 1)), torch.randn(32)
    done = (torch.rand(32) < 0.1).float()
    value = model(state).gather(1, action).squeeze(1)
    target = reward + 0.97 * (1 - done) * model(successor).max(1).values  # expect: LOSS28
    loss = F.smooth_l1_loss(value, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
target_model = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    state, successor = torch.randn(32, 4), torch.randn(32, 4)
    action, reward = torch.randint(2, (32, 1)), torch.randn(32)
    done = (torch.rand(32) < 0.1).float()
    value = model(state).gather(1, action).squeeze(1)
    target = reward + 0.97 * (1 - done) * target_model(successor).max(1).values
    loss = F.smooth_l1_loss(value, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for old, new in zip(target_model.parameters(), model.parameters()):
        old.data.lerp_(new.data, 0.05)
"""

FIXED = BUGGY.replace("max(1).values", "max(1).values.detach()")
