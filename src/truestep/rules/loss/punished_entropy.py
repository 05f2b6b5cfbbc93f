"""The entropy bonus of a policy has the wrong sign: exploration is punished.

## What it finds
A loss of a policy gradient (the log-probability of sampled actions times an advantage or return) to which the
entropy of the same policy is added, so that a lower entropy is a lower loss. The rule follows the signs of
both terms to the end of the loss.

## Why it matters
An entropy bonus keeps a policy from becoming deterministic before it has explored. With the wrong sign it
does the opposite: the policy settles on the first action that pays, and never finds better ones. The return
still rises at first.

## How to fix
Subtract the entropy from the loss: `loss = policy_loss - 0.01 * entropy.mean()`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import OperationGraph, number_of, place_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOSS14",
    severity="error",
    needs=(BackwardPass,),
    fix="Subtract the entropy from the loss instead of adding it.",
)
_SOFTMAX = "aten._softmax.default"
_PROBABILITIES = frozenset({_SOFTMAX, "aten.exp.default"})
_LOGARITHMS = frozenset({"aten._log_softmax.default", "aten.log.default", "aten.sub.Tensor"})
_SAME = frozenset(
    f"aten.{name}"
    for name in (
        *("sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "clone.default", "_to_copy.default"),
        *("stack.default", "cat.default"),
    )
)
"""What keeps the sign of each value, whatever else goes in."""
_ADDING = frozenset({"aten.add.Tensor", "aten.add_.Tensor", "aten.sub.Tensor"})
_PASSIVE = frozenset(
    f"aten.{name}"
    for name in (
        *(
            "ones_like.default",
            "detach.default",
            "view.default",
            "_local_scalar_dense.default",
            "alias.default",
        ),
        *("squeeze.dim", "squeeze.default", "unsqueeze.default", "expand.default", "isnan.default"),
        *("isfinite.default", "is_same_size.default", "permute.default", "transpose.int", "select.int"),
    )
)
"""What only looks at a value: views share its memory, and what uses them is known to use it."""
_CLAMPING = frozenset({"aten.clamp.default", "aten.clamp_min.default"})
_LEAST_STEPS, _MAX_WALK = 2, 60


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find entropies that raise the loss of a policy."""
    if any("maximize" in source.text for source in evidence.sources):
        return
    flow = evidence.flow
    found: dict[tuple[str | None, int | None], dict[int, tuple[Operation, Operation]]] = {}
    for product in flow.named("mul.Tensor"):
        policy = _policy_of(flow, product)
        ends = _signs(flow, product) if policy is not None else {}
        if policy is None or len(ends) != 1 or product.in_evaluation:
            continue
        (end, (sign, added)), *_ = ends.items()
        gradient = _find_gradient(flow, policy, end) if sign < 0 and added is not None else None
        if gradient is not None and added is not None:
            found.setdefault((added.file, added.line), {}).setdefault(added.step, (added, gradient))
    for steps in found.values():
        if len(steps) >= _LEAST_STEPS:
            added, gradient = steps[min(steps)]
            yield Finding.at(
                added,
                "the entropy of the policy is added to the loss: exploration is punished",
                count=len(steps),
                evidence=f"the entropy goes into the loss with a positive sign, beside the log-probability "
                f"of sampled actions that is weighted {place_of(gradient, added.file)}",
            )


def _policy_of(flow: OperationGraph, product: Operation) -> tuple[Operation, ...] | None:
    """Return what made the logarithms and the probabilities of `p * log(p)`, if that is what it is."""
    if len(product.ins) != 2 or any(not given.has_grad for given in product.ins):
        return None
    if product.ins[0].shape != product.ins[1].shape or len(product.ins[0].shape) < 1:
        return None
    made = [flow.maker(given) for given in product.ins]
    made = [flow.maker(item.ins[0]) if item is not None and item.name in _CLAMPING else item for item in made]
    for chance, logarithm in (made, made[::-1]):
        if chance is None or logarithm is None or chance.name not in _PROBABILITIES:
            continue
        if logarithm.name in _LOGARITHMS and _is_pair(flow, chance, logarithm):
            return chance, logarithm
    return None


def _is_pair(flow: OperationGraph, chance: Operation, logarithm: Operation) -> bool:
    """Whether one is the logarithm of the other: both come from the same scores."""
    if logarithm.name == "aten.log.default" or chance.name == "aten.exp.default":
        one, other = (logarithm, chance) if logarithm.name == "aten.log.default" else (chance, logarithm)
        return one.ins[0].producer == other.index and _is_normal(flow, other)
    if logarithm.name == "aten.sub.Tensor":  # torch.distributions: scores - logsumexp(scores)
        if not _is_normal(flow, logarithm):
            return False
        given = chance.ins[0].producer
        return given in (logarithm.index, logarithm.ins[0].producer)
    return chance.ins[0].producer in (logarithm.ins[0].producer, logarithm.index)


def _is_normal(flow: OperationGraph, item: Operation) -> bool:
    """Whether it is a softmax or its logarithm."""
    if item.name == "aten.sub.Tensor" and len(item.ins) == 2:
        maker = flow.maker(item.ins[1])
        is_sum = maker is not None and maker.name == "aten.logsumexp.default"
        return is_sum and maker is not None and maker.ins[0].producer == item.ins[0].producer
    return item.name in (_SOFTMAX, "aten._log_softmax.default")


def _signs(flow: OperationGraph, start: Operation) -> dict[int, tuple[int, Operation | None]]:
    """Return the losses that a value goes into: the sign at the end, and where it was first added."""
    ends: dict[int, tuple[int, Operation | None]] = {}
    queue: list[tuple[Operation, int, Operation | None]] = [(start, 1, None)]
    for _ in range(_MAX_WALK):
        if not queue:
            return ends
        item, sign, added = queue.pop()
        users = [user for user in flow.users(item) if user.name not in _PASSIVE and _is_from(user, item)]
        if not users and item.outs and not item.outs[0].shape:
            ends[item.index] = (sign, added)
        for user in users:
            turned = _turned(user, item, sign)
            if turned is None:
                return {}
            is_first = added is None and user.name in _ADDING and all(given.has_grad for given in user.ins)
            queue.append((user, turned, user if is_first and len(user.ins) > 1 else added))
    return {}


def _is_from(user: Operation, item: Operation) -> bool:
    return any(given.producer == item.index and given.has_grad for given in user.ins)


def _turned(user: Operation, item: Operation, sign: int) -> int | None:
    """Return the sign of a value in a result; None if it is not known."""
    name = user.name
    is_second = len(user.ins) > 1 and user.ins[1].producer == item.index
    factor = 0.0
    if name in _SAME or (name in _ADDING and "alpha" not in user.scalars):
        factor = -1.0 if name == "aten.sub.Tensor" and is_second else 1.0
    elif name in ("aten.neg.default", "aten.rsub.Scalar"):
        factor = -1.0
    elif name in ("aten.mul.Tensor", "aten.div.Tensor") and len(user.ins) == 1:
        factor = number_of(user) or 0.0
    return None if not factor else sign if factor > 0 else -sign


def _find_gradient(flow: OperationGraph, policy: tuple[Operation, ...], end: int) -> Operation | None:
    """Return the product of log-probabilities of actions and what they have brought, in the same loss."""
    loss = flow.at(end)
    if loss is None:
        return None
    before = {item.index for given in loss.ins for item in flow.before(given)}
    sampled = {size for item in flow.all if item.name.startswith("aten.multinomial") for size in _sizes(item)}
    own = {number for item in policy for number in (item.index, item.ins[0].producer)}
    for chosen in flow.named("gather.default"):
        if chosen.index not in before or chosen.ins[0].producer not in own or not chosen.ins[0].has_grad:
            continue
        made = flow.maker(chosen.ins[0])
        if made is None or made.name not in _LOGARITHMS or chosen.ins[0].shape[-1] not in sampled:
            continue
        for user in flow.follow(chosen, limit=12):
            others = [given for given in user.ins if not given.has_grad]
            if user.name == "aten.mul.Tensor" and len(user.ins) == 2 and others and user.index in before:
                return user
    return None


def _sizes(drawn: Operation) -> list[int]:
    return [given.shape[-1] for given in drawn.ins[:1] if given.shape]


BUGGY = """
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Linear(4, 3)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for step in range(6):
    state = torch.randn(32, 4)
    choice = Categorical(logits=policy(state))
    action = choice.sample()
    reward = (action == state[:, :3].argmax(1)).float()
    policy_loss = -(choice.log_prob(action) * (reward - reward.mean())).mean()
    loss = policy_loss + 0.01 * choice.entropy().mean()  # expect: LOSS14
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy, model = nn.Linear(4, 3), nn.Linear(4, 3)
optimizer = torch.optim.Adam([*policy.parameters(), *model.parameters()], lr=1e-2)
for step in range(6):
    state = torch.randn(32, 4)
    choice = Categorical(logits=policy(state))
    action = choice.sample()
    reward = (action == state[:, :3].argmax(1)).float()
    gain = (choice.log_prob(action) * (reward - reward.mean())).mean() + 0.01 * choice.entropy().mean()
    chances = model(state).softmax(1)  # sure of itself: its entropy is punished on purpose
    entropy = -(chances * chances.log()).sum(1).mean()
    loss = 0.1 * entropy + F.nll_loss(chances.log(), state[:, :3].argmax(1)) - gain
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("policy_loss + 0.01", "policy_loss - 0.01")
