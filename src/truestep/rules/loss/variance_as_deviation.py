"""A variance is used as a standard deviation: the noise of a VAE is scaled with `exp(logvar)`.

## What it finds
Normal noise that is multiplied with `exp(logvar)`, or with a variance, and added to a mean, while the KL term
of the loss treats the same tensor as a variance: `1 + logvar - mean**2 - exp(logvar)`. Also a KL term that
contains `exp(0.5 * logvar)` where the variance belongs. A model whose loss uses standard deviations
throughout is not reported.

## Why it matters
Samples have another spread than the KL term believes. The latent space that the decoder learns is not the one
that the loss describes, and samples from the prior are worse than reconstructions.

## How to fix
Scale the noise with the standard deviation: `mean + noise * torch.exp(0.5 * logvar)`, and use `logvar.exp()`
in the KL term.
"""

from collections.abc import Iterator
from math import isclose
from typing import NamedTuple

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import OperationGraph, number_of, place_of
from truestep.rules.loss._terms import Key, Term, key_of, sums_of_terms
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass, ViewExponentiated
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS21",
    severity="error",
    needs=(BackwardPass,),
    fix="Scale the noise with torch.exp(0.5 * logvar), and use logvar.exp() in the KL term.",
)
_EXPONENTIALS = ("aten.exp.default", "aten.exp_.default")
_LOG = "aten.log.default"
_SAME = frozenset(
    f"aten.{name}.default"
    for name in ("clamp", "clamp_min", "clamp_", "clamp_min_", "clone", "_to_copy", "contiguous")
)
_LEAST_STEPS, _MAX_SAME = 2, 4


class _Divergence(NamedTuple):
    """A KL term: the sum, the term with the variance, and the logarithm of it."""

    total: Operation
    variance: Term
    logarithm: Key
    is_deviation: bool
    """Whether it has a standard deviation where the variance belongs."""


class _Found(NamedTuple):
    item: Operation
    other: Operation
    message: str
    evidence: str


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find noise that is scaled with what the KL term takes for a variance."""
    flow = evidence.flow
    starts = {moment.facts.operation_index: moment.facts.start for moment in evidence.of(ViewExponentiated)}
    found: dict[tuple[str | None, int | None], dict[int, _Found]] = {}
    for one in _find(flow, starts):
        found.setdefault((one.item.file, one.item.line), {}).setdefault(one.item.step, one)
    for steps in found.values():
        if len(steps) < _LEAST_STEPS:
            continue
        one = steps[min(steps)]
        yield Finding.at(one.item, one.message, count=len(steps), evidence=one.evidence)


def _find(flow: OperationGraph, starts: dict[int, int]) -> Iterator[_Found]:
    divergences = list(_divergences(flow))
    if not divergences:
        return
    scaled = list(_scaled_noise(flow))
    for one in divergences:
        variance = flow.maker(one.variance.given)
        if variance is None:
            continue
        if one.is_deviation:
            yield _Found(
                variance,
                one.total,
                "the KL term contains the standard deviation where the variance belongs",
                f"exp of half the tensor of shape {tuple(one.logarithm[1])}, whose logarithm the same sum "
                f"{place_of(one.total, variance.file)} takes with the opposite factor, next to the square "
                "of a mean",
            )
            continue
        for product, given in scaled:
            scale = _before_copies(flow, given)
            if scale is None or scale.step != one.total.step:
                continue
            if not _is_same((scale, given), (variance, one.variance.given), starts):
                continue
            is_shared = scale.index == variance.index
            yield _Found(
                product if is_shared else scale,
                one.total,
                "the noise is multiplied with a variance: the square root is missing",
                f"normal noise of shape {tuple(product.ins[0].shape)} is multiplied with {_name(scale)} "
                f"{place_of(product, product.file)}, and the KL term {place_of(one.total, product.file)} "
                f"takes {'the same values' if is_shared else 'exp of the same tensor'} for the variance: "
                "it adds them to the square of a mean, and subtracts their logarithm",
            )


def _name(scale: Operation) -> str:
    return f"the result of {scale.name.split('.')[1].rstrip('_')}"


def _divergences(flow: OperationGraph) -> Iterator[_Divergence]:
    """Yield sums with a variance, minus its logarithm, plus the square of a mean, all with one factor."""
    for total, terms in sums_of_terms(flow, _logarithms(flow)):
        if len(terms) < 3:
            continue
        for term in terms:
            others = [item for item in terms if item.reduced == term.reduced and item is not term]
            if not any(_is_square(flow, item) and isclose(item.factor, term.factor) for item in others):
                continue
            for other in others:
                if not isclose(other.factor, -term.factor) or other.given.shape != term.given.shape:
                    continue
                pair = _as_pair(flow, term, other)
                if pair is not None:
                    yield _Divergence(total, term, other.key, pair)


def _logarithms(flow: OperationGraph) -> set[Key]:
    """Return what an exponential or a logarithm is taken of, or an exponential of a half of it."""
    whole: set[Key] = set()
    for item in flow.all:
        if item.name == _LOG:
            whole.add(key_of(item.ins[0]))
        elif item.name in _EXPONENTIALS and item.ins:
            half = flow.maker(item.ins[0])
            whole.add(key_of(item.ins[0]))
            whole |= {key_of(half.ins[0])} if half is not None and _is_half(half) else set()
    return whole


def _as_pair(flow: OperationGraph, term: Term, other: Term) -> bool | None:
    """Whether the first is an exponential of half of the second; None if it is no exponential of it."""
    made, log = flow.maker(term.given), flow.maker(other.given)
    if made is None:
        return None
    if log is not None and log.name == _LOG:
        inner = log.ins[0]
        before = flow.maker(inner)
        if before is not None and before.name == "aten.add.Tensor" and len(before.ins) == 1:
            inner = before.ins[0]  # a small number, against the logarithm of 0
        return False if term.key in (key_of(inner), key_of(log.ins[0])) else None
    if made.name not in _EXPONENTIALS:
        return None
    if key_of(made.ins[0]) == other.key:
        return False
    half = flow.maker(made.ins[0])
    return True if half is not None and _is_half(half) and key_of(half.ins[0]) == other.key else None


def _is_half(item: Operation) -> bool:
    if len(item.ins) != 1 or item.name not in ("aten.mul.Tensor", "aten.div.Tensor"):
        return False
    return number_of(item) == (0.5 if "mul" in item.name else 2.0)


def _is_square(flow: OperationGraph, term: Term) -> bool:
    made = flow.maker(term.given)
    if made is None or not term.given.has_grad:
        return False
    if made.name == "aten.pow.Tensor_Scalar":
        return number_of(made) == 2
    is_own = made.name == "aten.mul.Tensor" and len(made.ins) == 2 and made.ins[0] == made.ins[1]
    return is_own or made.name == "aten.square.default"


def _scaled_noise(flow: OperationGraph) -> Iterator[tuple[Operation, In]]:
    """Yield products of normal noise that are added to what has a gradient, with the scale."""
    for item in flow.named("mul.Tensor", "addcmul.default", "mul_.Tensor"):
        pair = item.ins[-2:]
        if len(pair) != 2:
            continue
        if item.name != "aten.addcmul.default" and not _is_added(flow, item):
            continue
        for noise, scale in (pair, pair[::-1]):
            drawn = flow.maker(noise)
            is_noise = drawn is not None and drawn.name.startswith(("aten.randn", "aten.normal"))
            if is_noise and scale.has_grad and not noise.has_grad:
                yield item, scale


def _is_added(flow: OperationGraph, item: Operation) -> bool:
    adding = ("aten.add.Tensor", "aten.add_.Tensor")
    return any(
        user.name in adding and len(user.ins) == 2 and all(given.has_grad for given in user.ins)
        for user in flow.users(item)
    )


def _before_copies(flow: OperationGraph, given: In) -> Operation | None:
    """Return what made a scale, before clamping and copies."""
    item = flow.maker(given)
    for _ in range(_MAX_SAME):
        if item is None or item.name not in _SAME:
            break
        item = flow.maker(item.ins[0])
    return item


def _is_same(one: tuple[Operation, In], other: tuple[Operation, In], starts: dict[int, int]) -> bool:
    """Whether two results are the same values: one result, or exp of the same part of a tensor."""
    if one[0].index == other[0].index:
        return one[1].shape == other[1].shape
    if any(item.name not in _EXPONENTIALS for item, _ in (one, other)):
        return False
    first, second = one[0], other[0]
    is_same_part = starts.get(first.index) == starts.get(second.index)
    return is_same_part and key_of(first.ins[0]) == key_of(second.ins[0])


BUGGY = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(16, 8), nn.Linear(4, 16)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for step in range(6):
    x = torch.rand(32, 16)
    mean, logvar = encoder(x).chunk(2, dim=1)
    deviation = torch.exp(logvar)  # expect: LOSS21
    restored = decoder(mean + torch.randn_like(mean) * deviation)
    kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum(1)
    loss = F.mse_loss(restored, x, reduction="none").sum(1).mean() + kl.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(16, 8), nn.Linear(4, 16)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for step in range(6):
    x = torch.rand(32, 16)
    mean, log_deviation = encoder(x).chunk(2, dim=1)
    deviation = torch.exp(log_deviation)
    restored = decoder(mean + torch.randn_like(mean) * deviation)
    kl = 0.5 * (mean.pow(2) + deviation.pow(2) - 1 - 2 * log_deviation).sum(1)
    loss = F.mse_loss(restored, x, reduction="none").sum(1).mean() + kl.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("torch.exp(logvar)", "torch.exp(0.5 * logvar)")
