"""Facts about optimizers, schedulers and gradients."""

from truestep.watch.evidence.kinds import NamedTuple, Place, kind


@kind(varies_from="rates", is_counted=True)
class OptimizerStep(NamedTuple):
    """An optimizer makes a step."""

    optimizer: int
    counts: bool
    """Whether it begins the next step of training: several optimizers that take turns make one together."""
    rates: list[float] | None
    """The learning rates of its groups, if they have changed."""


@kind()
class GradientsZeroed(NamedTuple):
    """`zero_grad()` of an optimizer or a model."""

    optimizer: int | None
    model: int | None


@kind()
class ClippingCalled(NamedTuple):
    """Gradients are clipped."""

    how: str
    """By `norm` or by `value`."""
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
class MetricGiven(NamedTuple):
    """A scheduler is given a metric."""

    scheduler: int
    mode: str
    """What it takes for better: `min` or `max`."""
    value: float


class ScheduleSettings(NamedTuple):
    """What a scheduler was made with, as far as it says for how many steps."""

    t_max: float | None
    total_steps: float | None
    total_iters: float | None
    milestones: list[float]
    numbers: list[int]
    """The whole numbers that its functions of the step were built with: one may be their number."""
    base_rates: list[float]
    """The rates that its factors are for, if they are plain numbers."""
    inner: dict[int, "ScheduleSettings"]
    """Those of the schedulers that it is made of, in their order."""


@kind(varies_from="settings")
class SchedulerMade(NamedTuple):
    """A scheduler is made."""

    scheduler: int
    class_name: str
    optimizer: int | None
    settings: ScheduleSettings


@kind()
class SchedulerEffective(NamedTuple):
    """A scheduler's step changes a rate."""

    scheduler: int


@kind(varies_from="num_trainable")
class GradientsApplied(NamedTuple):
    """What a step is about to apply."""

    optimizer: int
    num_trainable: int
    """How many parameters require gradients."""
    num_with_gradient: int
    passes: list[int]
    """The backward passes whose gradients it applies."""
    factor: float | None
    """What gradients were multiplied by since then; None if they were not."""
    stale_at: Place | None
    """The backward pass that added to gradients which a step had applied already, if one did."""
    clipped_at: list[Place]
    """Where gradients were clipped before a further backward pass added to them."""
    is_again: bool
    """Whether the last step has applied the same gradients, and nothing has touched them since."""


@kind(varies_from="passes")
class GradientsDropped(NamedTuple):
    """Gradients are zeroed that no step has used."""

    optimizer: int
    passes: list[int]
    """The backward passes that made them."""
    backward_at: Place
    """The last of these."""
    has_moved: bool
    """Whether weights were changed since."""
    is_finite: bool
    """Whether the losses were."""
    is_by_hand: bool
    """Whether without `zero_grad`."""


@kind(varies_from="optimizers")
class GradientsClipped(NamedTuple):
    """Gradients were clipped: whose, and in which state they are."""

    optimizers: list[int]
    state: str
    """`waiting` for a step, `applied` by one, `none` at all, or `unknown`."""
    is_in_step: bool
    """Whether a step is under way, as in a closure."""


@kind(varies_from="clipped_at")
class ScaledClipped(NamedTuple):
    """Gradients were clipped before they are unscaled."""

    optimizer: int
    clipped_at: Place
    scale: float


@kind()
class StepSkipped(NamedTuple):
    """A gradient scaler leaves a step out."""

    optimizer: int


@kind(varies_from="names")
class GradientsNonfinite(NamedTuple):
    """A step applies gradients that are infinite or NaN."""

    optimizer: int
    names: list[str]
    """Those of the first such parameters; shapes where there is no name."""
    num_parameters: int
    has_nonfinite_weights: bool
    is_loss_finite: bool
    backward_at: Place


@kind(varies_from="number")
class BackwardExamined(NamedTuple):
    """A backward pass, what models were given before it, and whose gradients it adds to."""

    number: int
    optimizers: list[int]
    num_reached: list[int]
    """How many parameters of each it adds to."""
    stack: int
    """A number for all lines of the user's that have led here."""
    inputs: int | None
    """A number for what the first module was given."""
    is_chained: bool
    """Whether that came from a module in the same step."""
    num_forwards: int
    num_grad_calls: int
    """How often `torch.autograd.grad` was called."""
    loaders: list[int]
    """Those that have handed out a batch."""


class UnmovedParameter(NamedTuple):
    """A parameter that steps do not change."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    first_step: int
    num_steps: int
    num_rated: int
    """Steps of these with a learning rate above zero."""
    weight: float
    gradient: float
    rate: float


@kind(varies_from="parameters")
class WeightsUnmoved(NamedTuple):
    """Weights that steps do not change."""

    optimizer: int
    parameters: list[UnmovedParameter]
    num_moved: int
    """How many others steps do change."""


@kind(varies_from="num_steps")
class GradientsZero(NamedTuple):
    """An optimizer whose parameters had gradients, of which none was ever anything but zero."""

    optimizer: int
    num_steps: int
    """How many of its steps were looked at."""
    num_parameters: int


class MatrixUpdate(NamedTuple):
    """How large the numbers of a matrix are, as the root of their mean square."""

    name: str
    gradient: float
    weight: float
    update: float


@kind(varies_from="matrices")
class UpdateMeasured(NamedTuple):
    """The size of an update beside that of the weights."""

    optimizer: int
    matrices: list[MatrixUpdate]


@kind(varies_from="loss")
class LossLevel(NamedTuple):
    """The value of the loss."""

    loss: float | str
    """A word if it is not finite."""


@kind(varies_from="num_trained")
class OptimizerOwns(NamedTuple):
    """How much of a model an optimizer has."""

    optimizer: int
    model: int
    num_trained: int
    """How many of the model's weights it trains."""
    num_weights: int


class LossTerm(NamedTuple):
    """A term of a loss that is a sum."""

    reduction: str
    """`mean`, `sum` or `other`."""
    factors: list[float]


@kind(varies_from="backward")
class GraphMeasured(NamedTuple):
    """The graph behind a loss."""

    backward: int
    """The number of the backward pass; 0 for `torch.autograd.grad`."""
    turn: int
    """How many steps were made, by an optimizer or by hand."""
    num_nodes: int
    num_old: int
    """Nodes made before the last step ended."""
    leaves: int
    """A number for all that gets a gradient."""
    num_parameters: int
    other_sizes: list[int]
    """Of what else gets a gradient: inputs, or a tensor that cuts the loss from the model."""
    factors: list[float]
    """What the whole loss is multiplied by."""
    terms: list[LossTerm]


@kind(varies_from="number")
class GraphRepeated(NamedTuple):
    """A backward pass begins at the loss of an earlier one, and adds the gradients that are there already."""

    number: int
    """That of the pass."""
    first: int
    """That of the earlier one."""
    first_at: Place
    num_tensors: int
    """How many gradients were compared: all are twice what they were."""


@kind()
class GraphCut(NamedTuple):
    """A loss that has no graph."""


@kind(varies_from="backward_at")
class GraphsKept(NamedTuple):
    """Graphs of earlier steps that are kept alive."""

    backward_at: Place
    steps: list[int]
    last_step: int
    """The one in which they were still alive."""
    is_part: bool
    """Whether terms of losses are kept, not losses."""
