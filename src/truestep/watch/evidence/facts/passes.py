"""Facts about models: what is called, in which mode, and what passes through."""

from typing import Any

from truestep.watch.evidence.kinds import NamedTuple, Place, kind


@kind()
class ModelUsed(NamedTuple):
    """An outermost module is called for the first time."""

    model: int
    class_name: str
    num_parameters: int


@kind()
class ForwardPass(NamedTuple):
    """An outermost module is called."""

    model: int
    is_training: bool
    is_grad_enabled: bool
    is_inference: bool
    tensors: Any
    """Shape and data type of its first arguments, with their names where they are keywords."""


@kind()
class ModeSet(NamedTuple):
    """`train()` or `eval()`."""

    class_name: str
    is_training: bool


@kind()
class BackwardPass(NamedTuple):
    """`backward()`, or `torch.autograd.grad`."""

    how: str
    """`backward` or `grad`."""


@kind()
class CompileCalled(NamedTuple):
    """`torch.compile`."""

    what: str


@kind()
class ParallelMade(NamedTuple):
    """A model is wrapped or sharded for several devices."""

    what: str
    is_in_group: bool
    """Whether some ranks have no part in it."""


@kind(varies_from="class_name")
class LayersListed(NamedTuple):
    """The layers of a model whose behaviour depends on its mode."""

    model: int
    class_name: str
    num_dropouts: int
    num_dropouts_on: int
    """How many of them are in train mode."""
    num_norms: int
    num_norms_on: int
    names: list[str]
    """The classes of these layers."""
    names_on: list[str]
    is_pretrained: bool

    @property
    def num_layers(self) -> int:
        """How many there are."""
        return self.num_dropouts + self.num_norms

    @property
    def num_on(self) -> int:
        """How many are in train mode."""
        return self.num_dropouts_on + self.num_norms_on


@kind(varies_from="number")
class PassExamined(NamedTuple):
    """A forward pass whose output is followed to the loss."""

    model: int
    is_training: bool
    is_grad_enabled: bool
    number: int
    has_graph: bool
    given: int
    """A number for the input: the same for the same tensor; negative if not known."""
    size: int
    """The length of the input's first axis."""


@kind(varies_from="numbers")
class PassesUsed(NamedTuple):
    """The forward passes that a backward pass reaches."""

    numbers: list[int]


@kind(varies_from="num_samples")
class SamplesMixed(NamedTuple):
    """Whether a sample's output depends on the others of its batch."""

    model: int
    num_samples: int
    num_changed: int
    """How many outputs changed when another sample was replaced."""
    most: float
    """How far, in standard deviations."""
    is_classifier: bool
    place: Place | None
    """The line that mixes them, if it lies inside of the model."""
    operation: str | None


@kind(varies_from="num_samples")
class PlaceInBatch(NamedTuple):
    """Whether a sample's output depends on its place in the batch."""

    model: int
    num_samples: int
    num_changed: int
    """How many samples gave another output after all had moved up by one place."""
    most: float
    """How far, in standard deviations."""
    place: Place | None
    """The line at which the place comes in, if it lies inside of the model."""


@kind(varies_from="length")
class FutureSeen(NamedTuple):
    """Whether a position's output depends on later ones."""

    model: int
    length: int
    cut: int
    """From here on tokens were replaced."""
    num_changed: int
    """How many outputs before it changed."""
    most: float
    """How far, in standard deviations."""
    place: Place | None
    """The line that looks ahead, if it lies inside of the model."""


@kind(varies_from="num_rows")
class MaskProbed(NamedTuple):
    """What a model does with padding."""

    model: int
    num_rows: int
    """Samples that have padding, and how many positions of it."""
    num_padding: int
    least_share: float
    """Which share of its weight each attention gives to padding, at least."""
    num_attentions: int
    place: Place | None
    """The line of the first attention."""


class LayerState(NamedTuple):
    """What an activation gave for one batch."""

    operation: str
    place: Place | None
    """None if no line of the user's lies inside of the model."""
    shape: tuple[int, ...]
    is_flat: bool
    """Whether all samples give the same."""
    num_units: int
    dead: float | None
    """The share of units that are zero for the whole batch, of a ReLU."""
    saturated: float | None
    """The share of values at the ends of the range, of others."""


@kind(varies_from="num_samples")
class LayerActivity(NamedTuple):
    """How many of a layer's units are at work."""

    model: int
    num_samples: int
    is_collapsed: bool
    """Whether different samples all give the same output."""
    layers: list[LayerState]


@kind(varies_from="operation_index")
class ScoresNormalised(NamedTuple):
    """What a log-softmax was given."""

    operation_index: int
    is_distribution: bool
    lowest: float
    highest: float


class TokenShift(NamedTuple):
    """Which share of the targets are the input tokens some places on, and of how many."""

    share: float
    num: int


class ScoredPadding(NamedTuple):
    """Targets that are scored where the model was given padding."""

    token: int
    """Negative for frames of zeros."""
    label: int
    num_padding: int
    num_scored: int
    """How many targets are scored, padding and others."""
    shortest: int
    longest: int
    """The lengths of its runs at the rows' ends."""


@kind(varies_from="operation_index")
class ClassesScored(NamedTuple):
    """What a loss over classes was given."""

    operation_index: int
    reduction: str
    ignored: int
    num_scored: int
    loss: float | str | None
    """A word if it is not finite; None if it is not one number."""
    shifts: list[TokenShift]
    """For targets that belong to tokens which a model was given: shifted by 0, 1 and 2 places."""
    padding: ScoredPadding | None


@kind(varies_from="weights")
class ClassesWeighted(NamedTuple):
    """What the classes weigh, and how many samples of each were read."""

    made_by: str
    """What was given the weights: the class of a sampler or a loss."""
    weights: list[float]
    counts: list[int]


@kind(varies_from="operation_index")
class EqualCompared(NamedTuple):
    """An operation that compares two trained tensors, both of which have the same values."""

    operation_index: int
    num_values: int


@kind(varies_from="operation_index")
class ProbabilitiesScored(NamedTuple):
    """What a loss over two classes was given."""

    operation_index: int
    num_values: int
    edge_share: float
    """How many lie at the lowest or highest value, if that is near 0 or 1, or beyond."""
