"""Inputs are not finite, or far outside the range that layers are designed for.

## What it finds
Float inputs that reach a weight layer unscaled and are NaN or infinite, or very large: pixels from 0 to 255,
raw columns of a table. Models that scale their inputs first are not reported, nor are pixels in scripts that
multiply by 255.

## Why it matters
Initial weights and common learning rates assume inputs of about unit size. Inputs a hundred times larger give
activations and gradients a hundred times larger: units saturate or die, and the loss jumps. One NaN makes all
weights NaN in one step.
"""

import re
from collections.abc import Iterator
from math import prod

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import SHAPING
from truestep.rules.kit.grouping import grouped
from truestep.rules.kit.loaders import scaled_at
from truestep.watch import Moment, Operation
from truestep.watch.evidence.facts.loading import InputMeasured
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="DATA07",
    severity="warning",
    needs=(InputMeasured, OptimizerStep),
    fix="Standardize the inputs (pixels: divide by 255), and replace or drop values that are not finite.",
)
_MOST_SIZE = 50.0
_LARGE = "the model's input was never scaled"
_TIMES_255 = re.compile(r"\.mul_?\(\s*255|[^*]\*=? *255\b")
_WEIGHT_LAYERS = ("convolution", "addmm", "mm", "linear", "bmm", "lstm", "gru", "rnn", "_thnn", "mkldnn")
_SAME = SHAPING | {
    *("permute", "transpose", "t", "squeeze", "expand", "flatten", "slice", "clone", "_to_copy", "select"),
    *("unbind", "split", "constant_pad_nd", "alias"),
}


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find what is wrong with the inputs of each model."""
    trained = [moment for moment in evidence.of(InputMeasured) if moment.facts.is_trained]
    by_model = grouped(trained or evidence.of(InputMeasured), "facts.model")
    for moments in by_model.values():
        found = _find_raw(moments)
        if found is None:
            continue
        operations = _in_forward(evidence, moments[0])
        layers = list(_first_layers(operations, tuple(moments[0].facts.shape)))
        is_meant = found[1] == _LARGE and _is_multiplied(evidence)
        if layers and None not in layers and not is_meant:
            first, message, text = found
            line = scaled_at(evidence, first, is_training=True) if message == _LARGE else first.line
            yield Finding.at(first, message, line=line, evidence=text)


def _find_raw(moments: list[Moment[InputMeasured]]) -> tuple[Moment[InputMeasured], str, str] | None:
    for moment in moments:
        facts = moment.facts
        if facts.num_nan or facts.num_infinite:
            text = f"{facts.num_nan} NaN and {facts.num_infinite} infinite values in shape {facts.shape}"
            return moment, "the model's input contains values that are not finite", text
    read = [(moment, moment.facts.spread) for moment in moments]
    known = [(moment, spread) for moment, spread in read if spread is not None]
    if not known:
        return None
    first, spread = known[0]
    sizes = sorted((item.mean**2 + item.std**2) ** 0.5 for _, item in known)
    if sizes[len(sizes) // 2] > _MOST_SIZE:
        text = (
            f"shape {first.facts.shape}, from {spread.lowest:g} to {spread.highest:g}, "
            f"mean {spread.mean:.3g}, standard deviation {spread.std:.3g}"
        )
        return first, _LARGE, text
    return None


def _in_forward(evidence: Evidence, moment: Moment[InputMeasured]) -> list[Operation]:
    return [item for item in evidence.operations if item.phase == "forward" and item.step == moment.step]


def _first_layers(operations: list[Operation], shape: tuple[int, ...]) -> Iterator[Operation | None]:
    """Yield the first layer of each tensor that may be the input: whose a tensor is, is not known."""
    inside = {item.index for item in operations}
    given = [item.producer for operation in operations for item in operation.ins if item.shape == shape]
    for producer in dict.fromkeys(given):
        if producer not in inside:
            yield _first_layer(operations, shape, producer)


def _first_layer(
    operations: list[Operation], shape: tuple[int, ...], producer: int | None
) -> Operation | None:
    """Return the weight layer that is the first to change the values of the input.

    Which is known by who last wrote its memory: views share it.
    """
    raw = {producer}
    for operation in operations:
        if not any(_is_input(item, raw, shape) for item in operation.ins):
            continue
        if operation.kind.startswith(_WEIGHT_LAYERS):
            return operation
        if operation.kind not in _SAME:
            return None  # scaled, normalized, compared: the model knows
        raw.add(operation.index)
    return None


def _is_multiplied(evidence: Evidence) -> bool:
    """Whether the script makes pixels of that size itself."""
    return any(_TIMES_255.search(source.text) for source in evidence.sources)


def _is_input(item: In, raw: set[int | None], shape: tuple[int, ...]) -> bool:
    """Whether it is the input, a view or a copy of it. What torch did not make is known by its size."""
    if item.producer is None:
        return None in raw and prod(item.shape) == prod(shape)
    return item.producer in raw
