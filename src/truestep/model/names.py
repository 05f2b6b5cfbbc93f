"""Names: which modules and parameters of a model a shell pattern or a type stands for.

Owns how patterns are read and the error when nothing matches. What is done with the chosen is up to others.
"""

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, overload

from torch import nn

from truestep.errors import UsageError

What: TypeAlias = str | type[nn.Module] | Iterable[str | type[nn.Module]]
"""A shell pattern of dotted names, a type of module, or several of these."""


@overload
def select(model: nn.Module, what: What, *, kind: Literal["modules"] = ...) -> dict[str, nn.Module]: ...
@overload
def select(model: nn.Module, what: What, *, kind: Literal["parameters"]) -> dict[str, nn.Parameter]: ...


def select(
    model: nn.Module, what: What, *, kind: Literal["modules", "parameters"] = "modules"
) -> dict[str, nn.Module] | dict[str, nn.Parameter]:
    """Return the modules (or parameters) that `what` stands for, by dotted name, in the model's order.

    `what` is a shell pattern ("encoder.layer.*", "*.bias"), a type (`nn.Linear`), or a list of these. As in
    `fnmatch`, `*` also runs across dots. Parameters are chosen by their own name, or by a module they are in:
    "encoder" stands for all parameters of the encoder. The model itself, whose name is "", is chosen by "" or
    by its type only. What has several names (a shared module, a tied weight) is found by each of them and
    given once, under the first that matches. A pattern that matches nothing is an error that shows the
    nearest names.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> list(select(model, nn.Linear))
    ['0', '2']
    >>> list(select(model, ["0", "*.bias"], kind="parameters"))
    ['0.weight', '0.bias', '2.bias']
    """
    if kind not in ("modules", "parameters"):
        raise UsageError(f"kind is {kind!r}. Pass kind='modules' or kind='parameters'.")
    modules = dict(model.named_modules(remove_duplicate=False))
    parameters = dict(model.named_parameters(remove_duplicate=False)) if kind == "parameters" else {}
    chosen: set[str] = set()
    for pattern in listed(what):
        found = {name for name, module in modules.items() if _fits(name, module, pattern)}
        if kind == "parameters":
            found = {name for name in parameters if _is_chosen(name, pattern, found)}
        if not found:
            raise UsageError(_nothing(model, pattern, names=[*modules, *parameters], kind=kind))
        chosen |= found
    return _once(parameters if kind == "parameters" else modules, chosen)


def within(model: nn.Module, what: What) -> dict[str, nn.Module]:
    """Return the modules that `what` stands for and those inside them; none if it names parameters only.

    >>> list(within(nn.Sequential(nn.Sequential(nn.ReLU()), nn.Tanh()), "0"))
    ['0', '0.0']
    """
    patterns = listed(what)
    modules = dict(model.named_modules(remove_duplicate=False))
    tops = {name for name, module in modules.items() if any(_fits(name, module, item) for item in patterns)}
    return _once(modules, {name for name in modules if _is_below(name, tops)})


def listed(what: What) -> list[str | type[nn.Module]]:
    """Return the patterns and types one by one, each known to be one or the other.

    >>> listed("fc.*")
    ['fc.*']
    """
    items: list[Any]
    items = list(what) if isinstance(what, Iterable) and not isinstance(what, str | type) else [what]
    for item in items:
        is_type = isinstance(item, type) and issubclass(item, nn.Module)
        if not (is_type or isinstance(item, str)):
            raise UsageError(
                f"{item!r} is neither a name pattern nor a type of module. "
                "Pass a string such as 'encoder.*', a type such as nn.Linear, or a list of these."
            )
    if not items:
        raise UsageError(
            "no name pattern was given: the list is empty. Pass at least one, such as 'encoder.*'."
        )
    return items


def _fits(name: str, module: nn.Module, pattern: str | type[nn.Module]) -> bool:
    if isinstance(pattern, type):
        return isinstance(module, pattern)
    return fnmatchcase(name, pattern) if name else not pattern


def _is_chosen(name: str, pattern: str | type[nn.Module], modules: set[str]) -> bool:
    if isinstance(pattern, str) and fnmatchcase(name, pattern):
        return True
    return _is_below(name.rpartition(".")[0], modules)


def _is_below(name: str, tops: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:depth]) in tops for depth in range(len(parts) + 1))


def _once(things: dict[str, Any], chosen: set[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    seen: set[int] = set()
    for name, thing in things.items():
        if name in chosen and id(thing) not in seen:
            seen.add(id(thing))
            given[name] = thing
    return given


def _nothing(model: nn.Module, pattern: str | type[nn.Module], *, names: list[str], kind: str) -> str:
    of = f"no {kind[:-1]} of {type(model).__name__}"
    if isinstance(pattern, type):
        types = ", ".join(sorted({type(module).__name__ for module in model.modules()}))
        where = "" if kind == "modules" else "in a module "
        return f"{of} is {where}of type {pattern.__name__}. It has modules of the types {types}."
    near = difflib.get_close_matches(pattern.strip("*?."), filter(None, names), n=5)
    shown = near or [name for name in names if name and "." not in name][:8]
    found = "The nearest names are" if near else "At the top it has"
    return f"{of} has a name like {pattern!r}. {found} {', '.join(shown) or 'no modules'}."
