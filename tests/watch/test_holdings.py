"""What optimizers are expected to hold, against what they hold."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from truestep.watch.script.holdings import expected_state_bytes, expected_working_bytes

CPU = torch.device("cpu")
KINDS: dict[str, dict[str, Any]] = {
    "SGD": {},
    "Adam": {},
    "AdamW": {"amsgrad": True},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "Adadelta": {},
    "ASGD": {},
    "Rprop": {},
    "RMSprop": {"centered": True, "momentum": 0.9},
    "Adafactor": {},
}


def make(kind: str, **settings: Any) -> tuple[torch.optim.Optimizer, list[Tensor]]:
    every = [nn.Parameter(torch.ones(40, 60)), nn.Parameter(torch.ones(50)), nn.Parameter(torch.ones(30, 30))]
    for item in every[:2]:  # the last one is not used
        item.grad = torch.ones_like(item)
    build: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, kind)
    return build(every, **settings), list(every)


@pytest.mark.parametrize(("kind", "settings"), [*KINDS.items(), ("SGD", {"momentum": 0.9})])
def test_state_is_as_large_as_expected(kind: str, settings: dict[str, Any]) -> None:
    optimizer, _ = make(kind, **settings)
    expected = expected_state_bytes(optimizer, CPU)
    optimizer.step()
    held = [item for state in optimizer.state.values() for item in state.values()]
    # Counters of steps are single numbers.
    assert expected == sum(item.nbytes for item in held if isinstance(item, Tensor) and item.numel() > 1)


def test_an_optimizer_of_another_library_is_not_known() -> None:
    class Own(torch.optim.SGD):
        pass

    optimizer = Own([nn.Parameter(torch.ones(3))], lr=0.1)
    assert expected_state_bytes(optimizer) is None and expected_working_bytes(optimizer, CPU) == 0


@pytest.mark.parametrize(
    ("settings", "num"),
    [
        ({"foreach": True}, 2450),  # for all parameters with a gradient at once
        ({"foreach": False}, 2400),  # for the largest
        ({"fused": True}, 0),
        ({"foreach": True, "weight_decay": 0.1}, 2 * 2450),
    ],
)
def test_a_step_takes_memory_for_a_while(settings: dict[str, Any], num: int) -> None:
    optimizer, _ = make("Adam", **settings)
    assert expected_working_bytes(optimizer, CPU) == 4 * num
