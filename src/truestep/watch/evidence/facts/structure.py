"""Facts about parameters: who has them, and what is saved and loaded."""

from typing import Any, NamedTuple

from truestep.watch.evidence.moment import kind


@kind(varies_from="digests")
class FileSaved(NamedTuple):
    """A file is saved."""

    how: str
    """By `torch`, `safetensors`, `numpy` or `distributed`."""
    path: str | None
    digests: dict[str, str] | None
    """Of what is saved, if the plan asks for digests."""


@kind()
class FileLoaded(NamedTuple):
    """A file is loaded."""

    how: str
    path: str | None
    is_weights_only: bool | None


@kind(varies_from="missing")
class StateLoaded(NamedTuple):
    """`load_state_dict()`."""

    what: str
    """Of a `model`, an `optimizer` or a `scheduler`."""
    class_name: str
    is_strict: bool | None
    missing: list[str] | None
    """The keys that did not fit, if there are any."""
    unexpected: list[str] | None


@kind(varies_from="value")
class ModelRefilled(NamedTuple):
    """What a model's `load_state_dict()` was given."""

    model: int
    value: Any


@kind(varies_from="value")
class StateSaved(NamedTuple):
    """What `torch.save` was given."""

    value: Any


@kind(varies_from="value")
class StatesShareMemory(NamedTuple):
    """Several states are kept that are the model's own memory."""

    value: Any


@kind(varies_from="value")
class CheckpointLoaded(NamedTuple):
    """What `torch.load` gave."""

    value: Any


@kind(varies_from="value")
class OptimizerNotResumed(NamedTuple):
    """A model is resumed, and its optimizer starts over."""

    optimizer: int
    value: Any


@kind(varies_from="value")
class ParametersListed(NamedTuple):
    """All modules, optimizers and parameters."""

    value: Any


@kind()
class LayerRepeated(NamedTuple):
    """One layer stands several times in a list."""

    class_name: str
    path: str
    """Of the list, from the model."""
    holder: str
    """The class that has the list, its file, and the attribute that leads to it."""
    file: str | None
    attribute: str
    num_copies: int
    num_others: int
    """The other entries of the list, and those of them that have parameters."""
    num_others_trained: int


@kind()
class SwitchIneffective(NamedTuple):
    """An attribute that switches nothing."""

    attribute: str
    is_on: bool
    """What it was set to."""
    path: str
    """Of the module or parameter that has it."""
    num_unaffected: int
    """Parameters whose `requires_grad` is the opposite."""


@kind(varies_from="paths")
class StatisticsMoved(NamedTuple):
    """Running statistics of frozen layers move."""

    paths: list[str]
    classes_around: list[str]
    """Of the first layer and of all modules around it, the outermost first."""
