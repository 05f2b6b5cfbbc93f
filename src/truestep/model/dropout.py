"""Dropout: where a model has it, as layers and as plain numbers, and setting all of it at once.

Owns what counts as dropout. What drops something else (whole layers, whole paths) is told and left alone.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from truestep.errors import UsageError
from truestep.model.names import What, listed, select, within
from truestep.model.tables import left_alone, printed, shortened, table

if TYPE_CHECKING:
    from types import TracebackType

    from rich.table import Table

_NAMED_DROPOUT = re.compile(r"(.+_)?dropout(_p|_prob|_probs|_probability|_rate|_ratio)?$")
"""`dropout`, `attention_dropout`, `dropout_p`: numbers that a forward hands to `F.dropout` or to a kernel."""
_LOOKS_ALIKE = re.compile(r"(^|_)drop|drop$|dropout")


class Place(NamedTuple):
    """One probability: the module's name, the module, the attribute, and its value."""

    name: str
    module: nn.Module
    attribute: str
    p: float

    def __str__(self) -> str:
        is_layer = isinstance(self.module, _DropoutNd)
        return self.name if is_layer else f"{self.name}.{self.attribute}".removeprefix(".")


@dataclass(frozen=True, kw_only=True, repr=False)
class Dropouts:
    """What `set_dropout` changed. As a context manager it sets everything back at the end of the block."""

    p: float
    changed: tuple[tuple[str, float], ...]
    """Each place that was set, with the value it had: a layer's name, or `module.attribute` of a number."""
    left: tuple[tuple[str, str], ...]
    """What looks like dropout and was left alone, with the reason."""
    _places: tuple[Place, ...] = field(repr=False, compare=False)

    def restore(self) -> None:
        """Set every place back to the value it had."""
        for place in self._places:
            setattr(place.module, place.attribute, place.p)

    def __enter__(self) -> "Dropouts":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        self.restore()

    def __rich__(self) -> "Table":
        kinds: dict[tuple[str, float], list[str]] = {}
        for place in self._places:
            kind = type(place.module).__name__
            label = kind if isinstance(place.module, _DropoutNd) else f"{kind}.{place.attribute}"
            kinds.setdefault((label, place.p), []).append(str(place))
        rows = [
            (label, str(len(names)), f"{was:g}", f"{self.p:g}", shortened(names, most=1))
            for (label, was), names in kinds.items()
        ]
        return table(("dropout", " places", " was", " is", "where"), rows)

    def __str__(self) -> str:
        lines = [printed(self.__rich__()) if self.changed else "no dropout was found"]
        return "\n".join([*lines, *left_alone(self.left)])

    __repr__ = __str__  # for notebooks


def set_dropout(model: nn.Module, p: float, *, what: What | None = None) -> Dropouts:
    """Set the probability of all dropout in the model, or in the modules that `what` stands for.

    Dropout is `nn.Dropout` and its kin, and plain numbers that layers hand to a kernel: `nn.LSTM.dropout`,
    `nn.MultiheadAttention.dropout`, `attention_dropout` of transformers' layers. Numbers in configurations,
    and what may drop whole layers or paths, are unchanged and reported. Not found: a number written in a
    `forward` (`F.dropout(x, 0.1)`). In a `with` statement, everything is set back at its end.

    >>> model = nn.Sequential(nn.LSTM(4, 4, num_layers=2, dropout=0.3), nn.Dropout(0.5))
    >>> with set_dropout(model, 0.0) as dropouts:
    ...     dropouts.changed
    (('0.dropout', 0.3), ('1', 0.5))
    >>> model[0].dropout, model[1].p
    (0.3, 0.5)
    """
    if not 0.0 <= p <= 1.0:
        raise UsageError(f"p is a probability, got p={p}. Pass a number from 0 to 1.")
    modules = dict(model.named_modules()) if what is None else _inside(model, what)
    places = tuple(find_dropouts(modules))
    left = tuple(_left(modules))
    for place in places:
        setattr(place.module, place.attribute, float(p))
    changed = tuple((str(place), place.p) for place in places)
    return Dropouts(p=float(p), changed=changed, left=left, _places=places)


def find_dropouts(modules: dict[str, nn.Module]) -> Iterator[Place]:
    """Yield every dropout probability of these modules that has an effect.

    >>> [str(place) for place in find_dropouts({"drop": nn.Dropout(0.1), "fc": nn.Linear(1, 1)})]
    ['drop']
    """
    for name, module in modules.items():
        if isinstance(module, _DropoutNd):
            yield Place(name, module, "p", module.p)
            continue
        for attribute, value in _numbers(module):
            if _NAMED_DROPOUT.match(attribute) and not _has_no_effect(module):
                yield Place(name, module, attribute, value)


def _inside(model: nn.Module, what: What) -> dict[str, nn.Module]:
    patterns = listed(what)  # once: an iterator can be gone through only once
    select(model, patterns)  # raises where nothing matches
    return within(model, patterns)


def _left(modules: dict[str, nn.Module]) -> Iterator[tuple[str, str]]:
    for name, module in modules.items():
        if isinstance(module, _DropoutNd):
            continue
        for attribute, _ in _numbers(module):
            if not _NAMED_DROPOUT.match(attribute):
                yield f"{name}.{attribute}".removeprefix("."), "may drop more than single values"
            elif _has_no_effect(module):
                yield f"{name}.{attribute}", "has no effect: dropout is between layers, and there is one"
        config = vars(module).get("config")
        if not name and config is not None:
            for attribute, _ in _numbers(config):
                yield f"config.{attribute}", "configuration: most is read only when a model is built"


def _numbers(thing: Any) -> Iterator[tuple[str, float]]:
    held = thing if isinstance(thing, Mapping) else getattr(thing, "__dict__", {})
    for attribute, value in held.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and _LOOKS_ALIKE.search(str(attribute)) and 0 <= value <= 1:
            yield attribute, value


def _has_no_effect(module: nn.Module) -> bool:
    return isinstance(module, nn.RNNBase) and module.num_layers == 1
