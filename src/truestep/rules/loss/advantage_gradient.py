"""The advantage of a policy gradient is not detached: the actor's loss trains the critic.

## What it finds
The log-probability of chosen actions, or its ratio, multiplied with an advantage that contains a critic's
output with its gradient. The critic also has a loss for its error, and a step applies the gradients of both.
An advantage that is detached, or whose gradients are zeroed before the critic's step, is not reported.

## Why it matters
The policy's loss falls if the critic makes advantages of likely actions large, whatever the rewards are.
These gradients work against the critic's own loss. Values become wrong, and the policy follows them.

## How to fix
Detach the advantage in the policy's loss: `-(log_prob * advantage.detach()).mean()`.
"""

from collections.abc import Iterator
from math import isclose, prod
from typing import NamedTuple

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import LINEAR, OperationGraph, number_of, place_of
from truestep.rules.loss._passed import Passed
from truestep.watch import Operation
from truestep.watch.evidence.facts.optimizing import BackwardExamined, GradientsApplied
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS29",
    severity="error",
    needs=(BackwardPass,),
    caused_by=("LOSS28",),
    fix="Detach the advantage in the policy's loss: -(log_prob * advantage.detach()).mean().",
)
_LOGARITHMS = frozenset({"aten._log_softmax.default", "aten.log.default"})
_CHOOSING = frozenset({"aten.gather.default", "aten.index.Tensor"})
_OF_LABELS = frozenset({"aten.nll_loss_forward.default", "aten.binary_cross_entropy_with_logits.default"})
_HALF_LOG_TWO_PI = 0.9189385332046727
_SUMS = frozenset(f"aten.{name}.Tensor" for name in ("add", "sub", "rsub", "add_", "sub_"))
_SHIFTS = frozenset({"aten.add.Scalar", "aten.sub.Scalar", "aten.rsub.Scalar"})
_SAME = frozenset(
    f"aten.{name}"
    for name in (
        *("neg.default", "clone.default", "_to_copy.default", "stack.default", "cat.default", "flip.default"),
        *(
            "mul.Scalar",
            "div.Scalar",
            "clamp.default",
            "clamp_min.default",
            "clamp_max.default",
            "exp.default",
        ),
        *("sum.dim_IntList", "mean.dim"),
    )
)
_FACTORS = frozenset(f"aten.{name}.Tensor" for name in ("mul", "div", "mul_", "div_"))
_ERRORS = frozenset(
    f"aten.{name}.default" for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss")
)
_SQUARES = frozenset({"aten.pow.Tensor_Scalar", "aten.square.default", "aten.mul.Tensor"})
_LEAST_STEPS, _MAX_WALK = 2, 80
Key = tuple[int, tuple[int, ...]]


class _Found(NamedTuple):
    product: Operation
    value: Operation
    error: Operation


class _Sum(NamedTuple):
    """What is added up in a tensor."""

    tied: list[In]
    """Parts with a gradient."""
    is_difference: bool
    """Whether something without a gradient is added to them, or subtracted: a return."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find products of a log-probability and an advantage through both of which gradients flow."""
    flow, passed = evidence.flow, Passed(evidence)
    errors = [(item, keys) for item in flow.all if (keys := _regressed(flow, item))]
    found: dict[tuple[str | None, int | None], dict[int, _Found]] = {}
    for product in flow.named("mul.Tensor") if errors else ():
        if len(product.ins) != 2 or not all(given.has_grad for given in product.ins):
            continue
        for chosen, advantage in (product.ins, product.ins[::-1]):
            one = _as_gradient(flow, product, (chosen, advantage), errors)
            if one is not None and passed.goes_through(product) and _is_applied(evidence, product):
                found.setdefault((product.file, product.line), {}).setdefault(product.step, one)
    for steps in found.values():
        if len(steps) < _LEAST_STEPS:
            continue
        one = steps[min(steps)]
        yield Finding.at(
            one.product,
            "the advantage is not detached: the loss of the policy trains the critic too",
            count=len(steps),
            evidence="the log-probability of chosen actions is multiplied with a difference of returns and "
            f"the output of a layer that is called {place_of(one.value, one.product.file)}; the error "
            f"{place_of(one.error, one.product.file)} trains that layer, and gradients of both are applied",
        )


def _as_gradient(
    flow: OperationGraph, product: Operation, pair: tuple[In, In], errors: list[tuple[Operation, set[Key]]]
) -> _Found | None:  # limits: private to this file
    chosen, advantage = pair
    total = _sum_of(flow, advantage)
    if not total.is_difference or not total.tied:
        return None
    policy = _policy_of(flow, chosen)
    for given in total.tied if policy else ():
        heads = _heads(flow, given)
        for error, trained in errors:
            own = trained - policy
            if error.step == product.step and own and heads.keys() & own and not heads.keys() & policy:
                return _Found(product, heads[min(heads.keys() & own)], error)
    return None


def _policy_of(flow: OperationGraph, given: In) -> set[Key]:
    """Return the last weights before the log-probability of something chosen; empty if it is none."""
    queue, num = [given], 0
    while queue and num < _MAX_WALK:
        item, num = flow.maker(queue.pop(0)), num + 1
        if item is None or not item.ins:
            continue
        if item.name in _CHOOSING:
            made = flow.maker(item.ins[0])
            is_log = made is not None and (made.name in _LOGARITHMS or _is_normalised(flow, made))
            return set(_heads(flow, item.ins[0])) if is_log else set()
        is_normal = item.name == "aten.sub.Tensor" and isclose(number_of(item) or 0, _HALF_LOG_TWO_PI)
        if is_normal or item.name in _OF_LABELS:
            return set(_heads(flow, item.ins[0]))
        tied = [one for one in item.ins if one.has_grad]
        if item.name in _SAME | _SHIFTS or (item.name in _SUMS | _FACTORS and len(tied) == 1):
            queue += tied
    return set()


def _is_normalised(flow: OperationGraph, item: Operation) -> bool:
    """Whether the logarithm of a sum of exponentials was subtracted."""
    second = flow.maker(item.ins[1]) if item.name == "aten.sub.Tensor" and len(item.ins) == 2 else None
    return second is not None and second.name == "aten.logsumexp.default"


def _sum_of(flow: OperationGraph, given: In) -> _Sum:
    """Return the parts of a sum or difference, before it is normalised or stacked."""
    queue, tied, num, is_difference = [given], [], 0, False
    while queue and num < _MAX_WALK:
        one, num = queue.pop(0), num + 1
        item = flow.maker(one)
        if item is None or not item.ins:
            continue
        parts = [part for part in item.ins if part.has_grad]
        if item.name in _SUMS | _SHIFTS:
            # Returns have the shape of the estimates; single ones may be numbers.
            loose = [part for part in item.ins if not part.has_grad and part.shape == one.shape]
            is_single = len(item.ins) == 1 and prod(one.shape) == 1
            is_difference = is_difference or bool(loose) or is_single
            queue += [part for part in parts if part.shape == one.shape] or parts
        elif item.name in _FACTORS and len(item.ins) == 2:
            queue += parts[:1] if "div" in item.name or len(parts) == 1 else []
        elif item.name in _FACTORS or (item.name in _SAME and item.name != "aten.exp.default"):
            queue += parts
        else:
            tied.append(one)
    return _Sum(tied, is_difference)


def _heads(flow: OperationGraph, given: In) -> dict[Key, Operation]:
    """Return the last layers' weights that a tensor was computed by."""
    found: dict[Key, Operation] = {}
    for item in flow.before(given, _until_layer):
        if item.name in LINEAR:
            for one in item.ins:
                made = flow.maker(one)
                if one.has_grad and made is not None and one.producer is not None and _is_leaf(made):
                    found[one.producer, tuple(sorted(one.shape))] = item
    return found


def _until_layer(item: Operation) -> tuple[In, ...]:
    return () if item.name in LINEAR else item.ins


def _is_leaf(made: Operation) -> bool:
    return made.phase == "setup" or not any(one.has_grad for one in made.ins)


def _regressed(flow: OperationGraph, item: Operation) -> set[Key]:
    """Return the last weights of what is compared with something, if this is an error or a square."""
    tied = [one for one in item.ins if one.has_grad]
    if not tied:
        return set()
    if item.name in _ERRORS:
        return {key for one in tied for key in _heads(flow, one)}
    is_own = len(item.ins) == 2 and item.ins[0] == item.ins[1]
    is_square = item.name in _SQUARES and (is_own if item.name == "aten.mul.Tensor" else len(item.ins) == 1)
    if not is_square or (item.name == "aten.pow.Tensor_Scalar" and number_of(item) != 2):
        return set()
    total = _sum_of(flow, tied[0])
    return {key for one in total.tied for key in _heads(flow, one)} if total.is_difference else set()


def _is_applied(evidence: Evidence, product: Operation) -> bool:
    """Whether all optimizers that the backward pass of a product reaches apply its gradients."""
    lines = {
        (item.file, item.line)
        for item in evidence.operations
        if item.phase == "backward"
        and (item.step, item.forward_file, item.forward_line) == (product.step, product.file, product.line)
    }
    numbers = {
        moment.facts.number: set(moment.facts.optimizers)
        for moment in evidence.of(BackwardExamined)
        if moment.step == product.step and (moment.file, moment.line) in lines
    }
    applied: dict[int, set[int]] = {}
    for moment in evidence.of(GradientsApplied):
        for number in moment.facts.passes:
            applied.setdefault(number, set()).add(moment.facts.optimizer)
    return all(reached <= applied.get(number, set()) for number, reached in numbers.items())


BUGGY = """
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy, critic = nn.Linear(4, 3), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=1e-2)
for step in range(6):
    state = torch.randn(32, 4)
    choice = Categorical(logits=policy(state))
    action = choice.sample()
    gain = (action == state[:, :3].argmax(1)).float()
    advantage = gain - critic(state).squeeze(1)
    policy_loss = -(choice.log_prob(action) * advantage).mean()  # expect: LOSS29
    loss = policy_loss + 0.5 * advantage.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy, critic = nn.Linear(4, 3), nn.Linear(4, 1)
actor_optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
for step in range(6):
    state = torch.randn(32, 4)
    choice = Categorical(logits=policy(state))
    action = choice.sample()
    gain = (action == state[:, :3].argmax(1)).float()
    advantage = gain - critic(state).squeeze(1)
    actor_optimizer.zero_grad()
    (-(choice.log_prob(action) * advantage).mean()).backward(retain_graph=True)
    actor_optimizer.step()
    critic_optimizer.zero_grad()  # what the policy's loss has left is not applied
    advantage.pow(2).mean().backward()
    critic_optimizer.step()
"""

FIXED = BUGGY.replace("(action) * advantage)", "(action) * advantage.detach())")
