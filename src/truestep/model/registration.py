"""Registration: what a model uses and does not know it has.

Owns the search through the attributes of modules. Whether it is trained all the same is for `truestep check`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

_ADVICE = {
    "module": "not trained, saved or moved: use nn.ModuleList or nn.ModuleDict",
    "parameter": "not trained, saved or moved: use nn.ParameterList or nn.ParameterDict",
    "tensor": "not saved or moved: use self.register_buffer(name, tensor)",
}


@dataclass(frozen=True, kw_only=True)
class Unregistered:
    """Something that a module holds as a plain attribute."""

    name: str
    """Where it is: `heads['flow']`, `encoder.mean`."""
    kind: Literal["module", "parameter", "tensor"]

    def __str__(self) -> str:
        return f"{self.name} is a {self.kind} that is {_ADVICE[self.kind]}"


def unregistered(model: nn.Module) -> tuple[Unregistered, ...]:
    """Return the modules, parameters and tensors that the model's modules hold without being registered.

    `parameters()`, `state_dict()` and `.to(device)` go by what is registered: attributes that are modules,
    parameters or buffers, and `nn.ModuleList` and its kin. A plain list, tuple or dictionary is not looked
    into by them, and a plain tensor is no buffer. It is searched, three deep. What is also registered
    somewhere in the model is not reported.

    >>> import torch
    >>> model = nn.Module()
    >>> model.heads = [nn.Linear(2, 1)]
    >>> model.mean = torch.zeros(2)
    >>> for found in unregistered(model):
    ...     print(found)
    heads[0] is a module that is not trained, saved or moved: use nn.ModuleList or nn.ModuleDict
    mean is a tensor that is not saved or moved: use self.register_buffer(name, tensor)
    """
    known = {id(thing) for thing in (*model.modules(), *model.parameters(), *model.buffers())}
    found: dict[int, Unregistered] = {}
    for path, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in _TORCHS_OWN:
                continue
            where = f"{path}.{attribute}".removeprefix(".")
            for name, thing in _things(where, value, depth=3):
                if id(thing) not in known:
                    found.setdefault(id(thing), Unregistered(name=name, kind=_kind(thing)))
    return tuple(found.values())


_TORCHS_OWN = set(vars(nn.Module()))


def _things(name: str, value: Any, *, depth: int) -> Iterator[tuple[str, nn.Module | Tensor]]:
    if isinstance(value, nn.Module | Tensor):
        yield name, value
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _things(f"{name}[{key!r}]", item, depth=depth - 1)
    elif depth and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _things(f"{name}[{index}]", item, depth=depth - 1)


def _kind(thing: nn.Module | Tensor) -> Literal["module", "parameter", "tensor"]:
    if isinstance(thing, nn.Module):
        return "module"
    return "parameter" if isinstance(thing, nn.Parameter) or thing.requires_grad else "tensor"
