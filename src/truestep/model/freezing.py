"""Freezing: parameters that no longer learn, and normalisation whose running statistics stand still.

Owns the hold on such layers that outlasts `model.train()`. Which parameters are meant is up to `names`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from truestep.errors import UsageError
from truestep.model.names import What, listed, select, within


class _Held:
    """Stands in for `train` on one module: its own mode stays eval, whatever is asked.

    An object of the instance, not a hook: `module.training` tells the truth before the first forward too,
    nothing is added to each forward, and `state_dict` has no new keys. Copies and pickles take theirs along.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.wanted = module.training
        self(self.wanted)

    def __call__(self, mode: bool = True) -> nn.Module:
        self.wanted = mode
        self.module.training = False
        for child in self.module.children():
            child.train(mode)
        return self.module


@dataclass(frozen=True, kw_only=True, repr=False)
class Frozen:
    """What is frozen in a model after `freeze` or `unfreeze`, and what that call changed."""

    changed: tuple[str, ...]
    """The parameters that this call froze or unfroze."""
    held: tuple[str, ...]
    """Normalisation layers that stay in eval mode, with their running statistics, after `model.train()`."""
    num_frozen: int
    num_trainable: int

    def __str__(self) -> str:
        lines = [f"{self.num_frozen:,} values frozen, {self.num_trainable:,} trainable"]
        if self.held:
            lines.append(f"running statistics stand still: {', '.join(self.held)}")
        return "\n".join(lines)

    __repr__ = __str__  # for notebooks


def freeze(model: nn.Module, what: What) -> Frozen:
    """Stop parameters from learning, and normalization layers frozen whole from moving their statistics.

    `what` is a name pattern, a type of module, or a list of these, as in `select`. A layer with running
    statistics (BatchNorm) all of whose parameters are frozen is put into eval mode and stays there when
    `model.train()` is called. Dropout inside frozen parts stays active: to what is trained behind it, it is
    the same noise as before.

    Freeze before wrapping in DDP or building the optimizer (`trainable(model)`, `decay_groups(model, ...)`).

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2))
    >>> frozen = freeze(model, ["0", "1"])
    >>> frozen.num_frozen, frozen.num_trainable, frozen.held
    (240, 18, ('1',))
    >>> [layer.training for layer in model.train()]
    [True, False, True, True]
    """
    return _set(model, what, learns=False)


def unfreeze(model: nn.Module, what: What) -> Frozen:
    """Let parameters learn again, and normalization layers follow the model's mode again.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    >>> _ = freeze(model, "*")
    >>> unfreeze(model, "2").num_trainable
    10
    """
    return _set(model, what, learns=True)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that learn, each once, for an optimizer.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    >>> _ = freeze(model, "0")
    >>> [tuple(parameter.shape) for parameter in trainable(model)]
    [(2, 4), (2,)]
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise UsageError(
            f"no parameter of {type(model).__name__} is trainable, so an optimizer would have nothing to do. "
            "Unfreeze some: truestep.model.unfreeze(model, 'name of the head')."
        )
    return parameters


def _set(model: nn.Module, what: What, *, learns: bool) -> Frozen:
    for name, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise UsageError(
                f"{name or 'the model'} is wrapped in DistributedDataParallel, which has fixed already which "
                "gradients it waits for. Freeze or unfreeze the plain model before wrapping it."
            )
    parameters: dict[str, nn.Parameter] = {}
    inside: dict[str, nn.Module] = {}
    for item in listed(what):
        modules = within(model, item)
        inside |= modules
        if not _are_only_statistics(modules.values()):
            parameters |= select(model, item, kind="parameters")
    changed = [name for name, parameter in parameters.items() if parameter.requires_grad != learns]
    for parameter in parameters.values():
        parameter.requires_grad_(learns)
    touched = {id(parameter) for parameter in parameters.values()}
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        is_meant = any(id(parameter) in touched for parameter in own)
        if not own:
            is_meant = any(module is other for other in inside.values())
        if is_meant and has_statistics(module):
            _hold(module, held=not learns and not any(parameter.requires_grad for parameter in own))
    return _report(model, changed)


def has_statistics(module: nn.Module) -> bool:
    """Whether a module keeps running statistics, as BatchNorm does.

    >>> has_statistics(nn.BatchNorm1d(2)), has_statistics(nn.LayerNorm(2))
    (True, False)
    """
    return getattr(module, "running_mean", None) is not None


def is_held(module: nn.Module) -> bool:
    """Whether `freeze` keeps a module in eval mode.

    >>> layer = nn.BatchNorm1d(2)
    >>> _ = freeze(layer, "*")
    >>> is_held(layer)
    True
    """
    return isinstance(vars(module).get("train"), _Held)


def _are_only_statistics(modules: Iterable[nn.Module]) -> bool:
    """Whether there is no parameter in the modules but something to hold: BatchNorm without weights."""
    modules = list(modules)
    return any(map(has_statistics, modules)) and not any(
        True for module in modules for _ in module.parameters(recurse=False)
    )


def _hold(module: nn.Module, *, held: bool) -> None:
    current = vars(module).get("train")
    if held and not isinstance(current, _Held):
        module.train = _Held(module)  # type: ignore[method-assign]
    elif not held and isinstance(current, _Held):
        del module.train
        module.training = current.wanted


def _report(model: nn.Module, changed: list[str]) -> Frozen:
    parameters = list(model.parameters())
    return Frozen(
        changed=tuple(changed),
        held=tuple(name for name, module in model.named_modules() if is_held(module)),
        num_frozen=sum(parameter.numel() for parameter in parameters if not parameter.requires_grad),
        num_trainable=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
    )
