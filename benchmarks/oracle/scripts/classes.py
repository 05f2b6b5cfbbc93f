"""State in class attributes, slots, dataclasses, named tuples and properties."""

import dataclasses
import typing

import torch
from torch import nn


class Registry:
    shared = torch.zeros(4)
    entries: typing.ClassVar = {}

    @classmethod
    def put(cls, name, value):
        cls.entries[name] = value


class Slotted:
    __slots__ = ("_mean", "square")

    def __init__(self):
        self._mean, self.square = torch.zeros(4), torch.zeros(4)


@dataclasses.dataclass
class State:
    trace: torch.Tensor
    inner: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, frozen=True)
class Frozen:
    anchor: torch.Tensor
    others: tuple = ()


torch.manual_seed(0)
model = nn.Linear(6, 4)
optimizer = torch.optim.Adamax(model.parameters(), lr=0.01)
slotted, state = Slotted(), State(torch.zeros(4), {"deep": [{"deeper": (torch.zeros(4), torch.ones(2, 4))}]})
frozen = Frozen(torch.zeros(4), (torch.ones(4), [torch.ones(4)]))
for step in range(4):
    output = model(torch.randn(5, 6))
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
    value = output.detach().mean(0)
    Registry.shared += value
    Registry.put("last", value.clone())
    slotted._mean += value
    slotted.square += value * value
    state.trace = 0.9 * state.trace + value
    # plant 0-3: Registry.shared | Registry.entries["last"] | slotted._mean | slotted.square | state.trace
    # plant 0-3: state.inner["deep"][0]["deeper"][0] | state.inner["deep"][0]["deeper"][1]
    # plant 0-3: frozen.anchor | frozen.others[0] | frozen.others[1][0]
