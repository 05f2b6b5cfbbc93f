"""Layers taken out and put in: the model keeps its own `forward`.

Owns replacing a module wherever the model refers to it. Stopping inside a forward is up to `cutting`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from truestep.errors import UsageError
from truestep.model.names import What, aliases, select
from truestep.model.tables import shortened

_Pair = tuple[list[str], nn.Module, nn.Module]
By = nn.Module | Callable[[nn.Module], nn.Module]
"""A module, or a function that is given the old module and returns the new one."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Replaced:
    """What `replace` did."""

    changed: tuple[tuple[str, str, str], ...]
    """Every name that has a new module, with the old one and the new one in words."""
    untied: tuple[tuple[str, str], ...]
    """Weights of the old modules that were tied, each with one of the other names that the old weight had."""
    hooks: tuple[str, ...]
    """Old modules that had hooks, which are gone with them."""
    sizes: tuple[tuple[str, int], ...]
    """Numbers of the model that still say the old number of outputs, such as `config.num_labels`."""

    def __str__(self) -> str:
        lines = [f"{name}: {new} instead of {old}" for name, old, new in self.changed]
        if self.untied:
            lines.append("no longer tied: " + shortened(f"{name} and {other}" for name, other in self.untied))
        if self.hooks:
            lines.append(f"hooks gone with the old modules: {shortened(self.hooks)}")
        if self.sizes:
            lines.append(
                "still the old number of outputs: "
                + shortened(f"{name} = {size}" for name, size in self.sizes)
            )
        return "\n".join(lines)

    __repr__ = __str__  # for notebooks


def replace(model: nn.Module, what: What, *, by: By, ties: Literal["refuse", "break"] = "refuse") -> Replaced:
    """Put a new module where `what` names one, keeping the model's own `forward`.

    `by` is a module, or a function from the old module to the new one; the function is called once for each
    module, and its result goes to every name that module has. The new module takes over the mode, device and
    dtype of the old one, but not that it is frozen. Weights of the old module that are tied to others are
    refused, unless `ties="break"` leaves the others with the old weight. Build the optimizer afterwards.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 10))
    >>> _ = replace(model, "2", by=lambda old: nn.Linear(old.in_features, 3))
    >>> model(torch.zeros(1, 4)).shape
    torch.Size([1, 3])
    >>> replace(model, nn.ReLU, by=nn.Tanh()).changed
    (('1', 'ReLU()', 'Tanh()'),)
    """
    chosen = select(model, what)
    _refuse_unclear(chosen, by)
    names = aliases(model, kind="modules")
    pairs = [(names[id(old)], old, _made(old, by, name)) for name, old in chosen.items()]
    for paths, old, _ in pairs:
        _refuse_hidden(model, paths[0], old)
    untied = tuple(_broken_ties(model, pairs))
    if untied and ties == "refuse":
        name = untied[0][0]
        others = shortened(other for weight, other in untied if weight == name)
        raise UsageError(
            f"{name} is tied: it is the same weight as {others}, and the new one would not be. "
            "Pass ties='break' if that is meant, and then tie the new one: model.a.weight = model.b.weight."
        )
    sizes = tuple(found for paths, old, new in pairs for found in _old_sizes(model, paths[0], old, new))
    for paths, old, new in pairs:
        _take_over(new, old, model)
        for path in paths:
            parent, _, attribute = path.rpartition(".")
            model.get_submodule(parent)._modules[attribute] = new
    return Replaced(
        changed=tuple((path, _words(old), _words(new)) for paths, old, new in pairs for path in paths),
        untied=untied,
        hooks=tuple(paths[0] for paths, old, _ in pairs if _has_hooks(old)),
        sizes=tuple(dict.fromkeys(sizes)),
    )


def _refuse_unclear(chosen: dict[str, nn.Module], by: By) -> None:
    if "" in chosen:
        raise UsageError(
            "the whole model was chosen. Name a module inside it: model.named_modules() lists them."
        )
    for inner in chosen:
        outer = next((name for name in chosen if inner.startswith(f"{name}.")), None)
        if outer is not None:
            raise UsageError(
                f"{outer} and {inner}, which is inside it, were both chosen. "
                "Pass a pattern or type that chooses one of them."
            )
    if isinstance(by, nn.Module) and len(chosen) > 1:
        raise UsageError(
            f"one module was given for {len(chosen)} places: {shortened(chosen)}. They would share it. "
            "Pass a function that makes a new one each time, such as by=lambda old: nn.GELU()."
        )


def _made(old: nn.Module, by: By, name: str) -> nn.Module:
    new = by if isinstance(by, nn.Module) else by(old)
    if not isinstance(new, nn.Module):
        raise UsageError(f"by returned {type(new).__name__} for {name}. It has to return a module.")
    return new


def _refuse_hidden(model: nn.Module, name: str, old: nn.Module) -> None:
    """Refuse if a plain list, tuple or dict of some module holds it: that one would go on with the old."""
    for path, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute == "_modules":
                continue
            held = value.values() if isinstance(value, dict) else value
            if isinstance(held, list | tuple | type({}.values())) and any(item is old for item in held):
                where = f"{path}.{attribute}".removeprefix(".")
                raise UsageError(
                    f"{name} is also in {where}, a plain {type(value).__name__}, which would keep it. "
                    f"Make {where} an nn.ModuleList or nn.ModuleDict, or look the module up by name there."
                )


def _broken_ties(model: nn.Module, pairs: list[_Pair]) -> Iterator[tuple[str, str]]:
    """Yield each weight that goes with an old module, with each other name it has in the model."""
    names = aliases(model, kind="parameters")
    for paths, old, new in pairs:
        kept = {id(parameter) for parameter in new.parameters()}
        own = tuple(f"{path}." for path in paths)
        for key, parameter in old.named_parameters():
            if id(parameter) not in kept:
                others = [name for name in names[id(parameter)] if not name.startswith(own)]
                yield from ((f"{paths[0]}.{key}", other) for other in others)


def _take_over(new: nn.Module, old: nn.Module, model: nn.Module) -> None:
    like = next(old.parameters(), None)
    like = next(model.parameters(), None) if like is None else like
    if like is not None:
        new.to(device=like.device, dtype=like.dtype if like.is_floating_point() else None)
    inside = {id(module) for module in old.modules()}
    for module in new.modules():
        if id(module) not in inside:  # where the new wraps the old, the old keeps its modes
            module.training = old.training


def _old_sizes(model: nn.Module, path: str, old: nn.Module, new: nn.Module) -> Iterator[tuple[str, int]]:
    size = getattr(old, "out_features", None)
    if not isinstance(size, int) or getattr(new, "out_features", size) == size:
        return
    parent = path.rpartition(".")[0]
    holders = {"": model, parent: model.get_submodule(parent), "config": getattr(model, "config", None)}
    for prefix, holder in holders.items():
        for attribute in ("num_labels", "num_classes", "vocab_size"):
            if getattr(holder, attribute, None) == size:
                yield f"{prefix}.{attribute}".removeprefix("."), size


def _has_hooks(module: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind, None) for kind in kinds)


def _words(module: nn.Module) -> str:
    text = repr(module)
    return text if "\n" not in text and len(text) < 60 else f"{type(module).__name__}(...)"
