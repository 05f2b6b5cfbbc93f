"""Facts about models: what is called, in which mode, and what passes through."""

from typing import Any, NamedTuple

from truestep.watch.evidence.moment import kind


@kind()
class ModelUsed(NamedTuple):
    """An outermost module is called for the first time."""

    model: int
    class_name: str
    num_parameters: int
    num_trainable: int
    num_buffers: int


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


@kind(varies_from="loss")
class BackwardPass(NamedTuple):
    """`backward()`, or `torch.autograd.grad`."""

    how: str
    """`backward` or `grad`."""
    tensors: Any
    """Shape and data type of what it begins at. This and the rest: only at steps that are looked at."""
    operation: str | None
    """The last operation, as autograd names it."""
    loss: float | None


@kind()
class CompileCalled(NamedTuple):
    """`torch.compile`."""

    what: str


@kind()
class ParallelMade(NamedTuple):
    """A model is wrapped or sharded for several devices."""

    what: str


@kind(varies_from="value")
class LayersListed(NamedTuple):
    """The layers of a model whose behaviour depends on its mode."""

    model: int
    value: Any


@kind(varies_from="value")
class PassExamined(NamedTuple):
    """A forward pass whose output is followed to the loss."""

    model: int
    is_training: bool
    is_grad_enabled: bool
    value: Any


@kind(varies_from="value")
class PassesUsed(NamedTuple):
    """The forward passes that a backward pass reaches."""

    value: Any


@kind(varies_from="value")
class SingleSample(NamedTuple):
    """A layer normalises over one sample."""

    model: int
    value: Any


@kind(varies_from="value")
class SettingsChanged(NamedTuple):
    """Settings of a model's layers differ from those of its training before."""

    model: int
    value: Any


@kind(varies_from="value")
class SamplesMixed(NamedTuple):
    """Whether a sample's output depends on the others of its batch."""

    model: int
    value: Any


@kind(varies_from="value")
class FutureSeen(NamedTuple):
    """Whether a position's output depends on later ones."""

    model: int
    value: Any


@kind(varies_from="value")
class LayerActivity(NamedTuple):
    """How many of a layer's units are at work."""

    model: int
    value: Any


@kind(varies_from="value")
class ForwardCalledDirectly(NamedTuple):
    """`forward` is called past a module's hooks."""

    class_name: str
    value: Any


@kind(varies_from="value")
class BiasesListed(NamedTuple):
    """Biases that a normalisation takes away again."""

    model: int
    value: Any


@kind(varies_from="value")
class BiasAdded(NamedTuple):
    """The operation that adds such a bias."""

    value: Any


@kind(varies_from="value", is_late=True)
class OperationsCrowded(NamedTuple):
    """Many small operations of one kind at one line."""

    operation: str
    value: Any


@kind(varies_from="value")
class LossExamined(NamedTuple):
    """What a loss function was given."""

    operation: str
    value: Any


@kind(varies_from="value")
class Recompilations(NamedTuple):
    """How often code was compiled."""

    value: Any
