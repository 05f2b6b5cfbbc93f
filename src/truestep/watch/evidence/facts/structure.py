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


@kind(varies_from="value")
class LayerRepeated(NamedTuple):
    """One layer stands several times in a list."""

    value: Any


@kind(varies_from="value")
class SwitchIneffective(NamedTuple):
    """An attribute that switches nothing."""

    value: Any


@kind(varies_from="value")
class StatisticsMoved(NamedTuple):
    """Running statistics of a frozen layer move."""

    value: Any
