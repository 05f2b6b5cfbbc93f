"""How models are put together: what hides from them, what stands in them twice, attributes without effect.

Owns the walk over attributes of modules. Reads them as they lie and runs no code of the user's.
"""

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor, nn

from truestep.watch.evidence.facts.structure import LayerRepeated, SwitchIneffective
from truestep.watch.script import module_tree

_MAX_ITEMS = 256
_MAX_DEPTH = 3
_PLAIN = frozenset(vars(nn.Module()))
"""What every module has."""
_SWITCHES = frozenset(
    ("requires_grad_", "require_grad", "requires_grads", "require_grads", "requires_gradient", "trainable")
)
"""Names that switch nothing and are taken for it; on modules `requires_grad` is another one."""
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


class Hidden(NamedTuple):
    """A parameter that a module uses and does not know."""

    parameter: Tensor
    holder: type
    attribute: str
    what: str
    is_training: bool


def file_of(kind: type) -> str | None:
    """Return the file in which a class is."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


def find_hidden(root: nn.Module) -> Iterator[Hidden]:
    """Yield parameters in lists, mappings or plain objects of a model's modules, not registered."""
    known = {id(item) for item in module_tree.parameters(root)}
    for module in module_tree.modules(root):
        for name, value in list(vars(module).items()):
            if name in _PLAIN:
                continue
            for item in _find_inside(value, 0):
                for parameter in module_tree.parameters(item) if isinstance(item, nn.Module) else (item,):
                    if id(parameter) not in known:
                        is_training = getattr(item, "training", True)
                        yield Hidden(parameter, type(module), name, type(item).__name__, is_training)


def _find_inside(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, nn.Module):
        if depth:  # directly in the mapping of attributes: past registration, so on purpose
            yield value
    elif isinstance(value, Tensor):
        if value.is_leaf and value.requires_grad:
            yield value
    elif depth < _MAX_DEPTH:
        for item in islice(_items(value, depth), _MAX_ITEMS):
            yield from _find_inside(item, depth + 1)


def _items(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, list | tuple | set | frozenset | deque):
        return iter(value)
    if isinstance(value, dict):
        return iter(dict.values(value))
    if depth <= 1 and hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        return iter(list(vars(value).values()))
    return iter(())


def find_repeated(root: nn.Module, is_own: Callable[[str], bool]) -> Iterator[LayerRepeated]:
    """Yield containers, but for other packages', in which one module with parameters stands twice."""
    holders: dict[str, nn.Module] = dict(module_tree.named_modules(root))
    for path, module in holders.items():
        if not isinstance(module, _CONTAINERS):
            continue
        items = [item for item in module._modules.values() if item is not None]
        counted = Counter(id(item) for item in items if next(module_tree.parameters(item), None) is not None)
        most, copies = counted.most_common(1)[0] if counted else (0, 0)
        if copies > 1:
            parent, attribute = _holder_of(path, holders)
            if origin_of(type(parent), is_own) == "other":
                continue
            yield LayerRepeated(
                class_name=type(next(item for item in items if id(item) == most)).__name__,
                path=path,
                holder=type(parent).__qualname__,
                file=file_of(type(parent)),
                attribute=attribute,
                num_copies=copies,
                num_others_trained=sum(counted.values()) - copies,
            )


def _holder_of(path: str, modules: dict[str, nn.Module]) -> tuple[nn.Module, str]:
    """Return the nearest module around a container that is none, and the attribute that leads to it."""
    attribute = path
    while path:
        path, _, attribute = path.rpartition(".")
        if not isinstance(modules[path], _CONTAINERS):
            return modules[path], attribute
    return modules[""], attribute


def find_switches(root: nn.Module) -> Iterator[SwitchIneffective]:
    """Yield attributes that were set to switch gradients on or off, and do not."""
    for path, module in module_tree.named_modules(root):
        for name in vars(module).keys() & (_SWITCHES | {"requires_grad"}):
            wanted = vars(module)[name]
            against = sum(item.requires_grad is not wanted for item in module_tree.parameters(module))
            if isinstance(wanted, bool) and against:
                yield SwitchIneffective(name, wanted, path, against)
    for path, parameter in module_tree.named_parameters(root):
        for name in vars(parameter).keys() & _SWITCHES:
            wanted = vars(parameter)[name]
            if isinstance(wanted, bool) and parameter.requires_grad is not wanted:
                yield SwitchIneffective(name, wanted, path, 1)


def origin_of(kind: type, is_own: Callable[[str], bool]) -> str:
    """Return whose a class of modules is: `own` for the user's, `torch` or `other`."""
    if kind.__module__.partition(".")[0] == "torch":
        return "torch"
    file = file_of(kind)
    return "own" if file is None or is_own(file) else "other"
