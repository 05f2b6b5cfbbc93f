"""Facts about optimizers, schedulers and gradients."""

from typing import Any, NamedTuple

from truestep.watch.evidence.moment import kind


@kind(varies_from="rates")
class OptimizerStep(NamedTuple):
    """An optimizer makes a step."""

    optimizer: int
    has_closure: bool
    counts: bool
    """Whether it begins the next step of training: several optimizers that take turns make one together."""
    rates: list[float] | None
    """The learning rates of its groups, if they have changed."""


@kind()
class GradientsZeroed(NamedTuple):
    """`zero_grad()` of an optimizer or a model."""

    optimizer: int | None
    model: int | None
    is_set_to_none: bool


@kind()
class ClippingCalled(NamedTuple):
    """Gradients are clipped."""

    how: str
    """By `norm` or by `value`."""
    limit: float | None
    num_parameters: int | None
    is_exhausted: bool
    """Whether the parameters came from an iterator that had none left."""


@kind()
class GradientsUnscaled(NamedTuple):
    """A gradient scaler unscales."""

    optimizer: int


@kind()
class SchedulerStep(NamedTuple):
    """A scheduler makes a step."""

    scheduler: int
    class_name: str


@kind(varies_from="value")
class SchedulerMade(NamedTuple):
    """A scheduler is made."""

    scheduler: int
    class_name: str
    optimizer: int | None
    value: Any


@kind()
class SchedulerEffective(NamedTuple):
    """A scheduler's step changes a rate."""

    scheduler: int


@kind(varies_from="value")
class GradientsApplied(NamedTuple):
    """What a step is about to apply."""

    optimizer: int
    value: Any


@kind(varies_from="value")
class GradientsDropped(NamedTuple):
    """Gradients are zeroed that no step has used."""

    optimizer: int
    value: Any


@kind(varies_from="value")
class GradientsClipped(NamedTuple):
    """Gradients were clipped: whose, and in which state they are."""

    value: Any


@kind(varies_from="value")
class ScaledClipped(NamedTuple):
    """Gradients were clipped before they are unscaled."""

    optimizer: int
    value: Any


@kind()
class StepSkipped(NamedTuple):
    """A gradient scaler leaves a step out."""

    optimizer: int


@kind(varies_from="value")
class GradientsNonfinite(NamedTuple):
    """A step applies gradients that are infinite or NaN."""

    optimizer: int
    value: Any


@kind(varies_from="value")
class BackwardExamined(NamedTuple):
    """A backward pass, and whose gradients it adds to."""

    value: Any


@kind(varies_from="value")
class WeightsUnmoved(NamedTuple):
    """Weights that steps do not change."""

    optimizer: int
    value: Any


@kind(varies_from="value")
class UpdateMeasured(NamedTuple):
    """The size of an update beside that of the weights."""

    optimizer: int
    value: Any


@kind(varies_from="value")
class LossLevel(NamedTuple):
    """The value of the loss."""

    value: Any


@kind(varies_from="value")
class GradientsPresent(NamedTuple):
    """Whether an optimizer's parameters have gradients."""

    optimizer: int
    value: Any


@kind(varies_from="value")
class OptimizerOwns(NamedTuple):
    """How much of a model an optimizer has."""

    optimizer: int
    model: int
    value: Any


@kind(varies_from="value")
class GraphMeasured(NamedTuple):
    """The graph behind a loss."""

    value: Any


@kind(varies_from="value")
class GraphCut(NamedTuple):
    """A loss that has no graph."""

    value: Any


@kind(varies_from="value")
class GraphsKept(NamedTuple):
    """Graphs of earlier steps that are kept alive."""

    value: Any
