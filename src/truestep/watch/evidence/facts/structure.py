"""Facts about parameters: who has them, and what is saved and loaded."""

from truestep.watch.evidence.kinds import NamedTuple, Place, kind


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


@kind()
class StateLoaded(NamedTuple):
    """`load_state_dict()`."""

    what: str
    """Of a `model`, an `optimizer` or a `scheduler`."""


class TakenState(NamedTuple):
    """A call of a model's `state_dict()`."""

    number: int
    place: Place
    step: int


@kind(varies_from="num_keys")
class ModelRefilled(NamedTuple):
    """What a model's `load_state_dict()` was given."""

    model: int
    class_name: str
    is_strict: bool
    num_keys: int
    num_tensors: int
    num_own: int
    """Tensors that are the model's own memory, and those written to since the state was taken."""
    num_written: int
    num_missing: int
    num_unexpected: int
    missing: list[str]
    """The first of the keys that did not fit."""
    unexpected: list[str]
    taken: TakenState | None
    """Where the state is from, if its tensors are those that `state_dict()` gave."""
    taken_before: list[TakenState]
    """If not, and it is the model's own memory: where states of that memory were taken in earlier steps."""


@kind(varies_from="modules")
class StateSaved(NamedTuple):
    """What `torch.save` was given."""

    modules: list[str]
    """The classes of modules in it."""
    num_written: int
    """Tensors that were written to since `state_dict()` gave them."""
    taken: TakenState | None
    is_direct: bool
    """Whether the user's own code called, and no package between."""


@kind(varies_from="keys")
class CheckpointLoaded(NamedTuple):
    """What `torch.load` gave."""

    keys: list[str]
    num_optimizers: int
    """States of optimizers in it that have made steps."""


@kind(varies_from="kept_names")
class OptimizerNotResumed(NamedTuple):
    """A model is resumed, and its optimizer starts over."""

    optimizer: int
    class_name: str
    kept_names: list[str]
    """What it keeps for each parameter between steps."""
    checkpoint: CheckpointLoaded


class HidingPlace(NamedTuple):
    """Where a model keeps a parameter that it does not know."""

    holder: str
    """The class, its file, and the attribute."""
    file: str | None
    attribute: str
    class_name: str
    """Of what lies there: a module or a parameter."""


class Parameter(NamedTuple):
    """A parameter as it was when the script ended."""

    path: str | None
    """Its name under the largest model that was called with it."""
    shape: tuple[int, ...]
    first_step: int
    last_step: int
    model: int | None
    holder: str | None
    """The innermost class around it that is not torch's."""
    origin: str | None
    """Whose that class is: own, torch, other."""
    is_training: bool
    hidden: HidingPlace | None
    """Where it is, if a model uses it without knowing it."""
    groups: dict[int, int]
    """By the number of an optimizer: the group that has it."""
    is_frozen: bool
    is_loaded: bool
    is_changed: bool
    """Whether it was seen to move although no optimizer moves it, or none with a gradient."""
    has_grad: bool
    num_passes: int
    """Backward passes with trained leaves, looked at, that left a gradient in it: none of an optimizer's."""
    num_alone: int
    """The same of backward passes without any trained leaf."""
    is_beside: bool
    share: float
    """Which share of the leaves in such a pass is not trained."""
    num_steps: int
    num_lost: int
    """Steps in a row, looked at, in which its optimizer had no gradient for it and no model called had it."""

    @property
    def name(self) -> str:
        """Its name, or its shape if it has none."""
        return self.path or f"a parameter of shape {self.shape}"


class Group(NamedTuple):
    """A group of an optimizer's parameters."""

    weight_decay: float
    is_decoupled: bool


class Optimizer(NamedTuple):
    """An optimizer as it was when the script ended."""

    number: int
    class_name: str
    made_at: Place
    stepped_at: Place
    was_frozen: bool
    """Whether all its parameters were frozen when it was made."""
    first_step: int
    num_steps: int
    is_frozen: bool
    """Whether at all its steps all its parameters were frozen and without gradients."""
    groups: list[Group]
    has_own_step: bool
    """Whether its `step` is not torch's: what it makes of the numbers in its groups is not known."""


@kind(varies_from="parameters")
class ParametersListed(NamedTuple):
    """All parameters and optimizers."""

    parameters: list[Parameter]
    optimizers: list[Optimizer]


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
    num_others_trained: int
    """The other entries of the list that have parameters."""


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
