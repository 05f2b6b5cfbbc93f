"""A generator or decoder ends in tanh, and the real data are from 0 to 1.

## What it finds
A discriminator or critic whose generated inputs come out of a `tanh`, from -1 to 1, while its real inputs are
never negative and at most 1. Also an autoencoder that ends in a `tanh` and reconstructs such data. The rule
follows the operations of the first steps.

## Why it matters
The discriminator recognises generated samples by a single negative number. The generator has to learn first
that half of its range never occurs. Training is slow or collapses, and pictures look washed out. A decoder
has to saturate for the brightest values, and its middle is the darkest.

## How to fix
Scale the real data to the generator's range: `Normalize([0.5], [0.5])` maps 0 to 1 to -1 to 1. Or end the
generator in a sigmoid.
"""

from collections.abc import Iterable, Iterator
from math import prod

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import LINEAR, OperationGraph, place_of
from truestep.rules.analysis.loaders import scaled_at
from truestep.watch import Moment, Operation
from truestep.watch.evidence.facts.loading import InputMeasured
from truestep.watch.evidence.facts.optimizing import OptimizerStep

RULE = Meta(
    code="DATA18",
    severity="warning",
    needs=(InputMeasured, OptimizerStep),
    fix="Scale the real data to the range from -1 to 1 too, as with Normalize([0.5], [0.5]).",
    is_preview=True,
)
_LEAST, _LEAST_VALUES = 2, 32
_HIGH, _TOLERANCE = 0.7, 1e-3
_ERRORS = ("mse_loss.default", "l1_loss.default", "smooth_l1_loss.default", "sub.Tensor")
_LAYERS = LINEAR | {"aten.cat.default"}
"""A discriminator may get labels beside its input."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models that are given values from 0 to 1, and others out of a tanh."""
    by_model: dict[int, list[Moment[InputMeasured]]] = {}
    for moment in evidence.of(InputMeasured):
        by_model.setdefault(moment.facts.model, []).append(moment)
    yield from _find_reconstructed(evidence, by_model.values())
    sizes = {number: {prod(item.facts.shape[1:]) for item in moments} for number, moments in by_model.items()}
    optimizers = {moment.facts.optimizer for moment in evidence.of(OptimizerStep)}
    for number, moments in by_model.items():
        real = [item for item in moments if _is_within(item.facts) and _lowest(item.facts) >= 0]
        is_adversary = len(sizes[number]) == 1 and any(sizes[number] != other for other in sizes.values())
        made = [item for item in _generated(evidence) if _size(item) in sizes[number]]
        if len(real) < _LEAST or not all(_is_within(item.facts) for item in moments):
            continue
        if is_adversary and len(made) >= _LEAST and len(optimizers) > 1:
            spread = real[0].facts.spread
            assert spread is not None
            yield Finding.at(
                real[0],
                line=scaled_at(evidence, real[0], is_training=True),
                message="the generator's range is -1 to 1, and that of the real data 0 to 1",
                count=len(real),
                evidence=f"the same model is given real data from {spread.lowest:.3g} to "
                f"{spread.highest:.3g} and the output of a tanh {place_of(made[0], real[0].file)}",
            )


def _find_reconstructed(
    evidence: Evidence, by_model: Iterable[list[Moment[InputMeasured]]]
) -> Iterator[Finding]:
    """Find models whose input is also what the output of a tanh is compared with."""
    losses = [item for item in evidence.flow.named(*_ERRORS) if _is_reconstruction(evidence.flow, item)]
    sizes = {prod(item.ins[1].shape[1:]) for item in losses}
    for moments in by_model:
        is_real = all(_is_within(item.facts) and _lowest(item.facts) >= 0 for item in moments)
        if len(losses) >= _LEAST and is_real and {prod(item.facts.shape[1:]) for item in moments} <= sizes:
            spread = moments[0].facts.spread
            assert spread is not None
            yield Finding.at(
                moments[0],
                line=scaled_at(evidence, moments[0], is_training=True),
                message="the decoder's range is -1 to 1, and that of the data 0 to 1",
                count=len(moments),
                evidence=f"the model is given data from {spread.lowest:.3g} to {spread.highest:.3g}, and its "
                f"tanh is compared with them {place_of(losses[0], moments[0].file)}",
            )


def _is_reconstruction(flow: OperationGraph, error: Operation) -> bool:
    """Whether a tanh that was computed from a tensor is compared with this tensor."""
    made, target = (flow.maker(error.ins[0]), error.ins[1].producer) if len(error.ins) > 1 else (None, None)
    if made is None or made.name != "aten.tanh.default" or target is None or error.ins[1].has_grad:
        return False
    return any(given.producer == target for item in flow.before(error.ins[0]) for given in item.ins)


def _generated(evidence: Evidence) -> list[Operation]:
    """Return each tanh whose values a layer gets as they are."""
    flow = evidence.flow
    found = (item for item in flow.named("tanh.default") if item.ins[0].has_grad)
    return [item for item in found if any(user.name in _LAYERS for user in flow.users(item))]


def _size(item: Operation) -> int:
    return prod(item.outs[0].shape[1:])


def _is_within(facts: InputMeasured) -> bool:
    """Whether all values are from -1 to 1, and some are near 1 or below 0."""
    spread = facts.spread
    if spread is None or spread.num_read < _LEAST_VALUES or facts.num_nan or facts.num_infinite:
        return False
    is_wide = spread.highest > _HIGH or spread.lowest < 0
    return is_wide and spread.lowest >= -1 - _TOLERANCE and spread.highest <= 1 + _TOLERANCE


def _lowest(facts: InputMeasured) -> float:
    return 0.0 if facts.spread is None else facts.spread.lowest
