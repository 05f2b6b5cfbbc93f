"""How many steps a script would make: known where its loops say so, unknown where one may end early."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from truestep.watch.script.loop_bounds import expected_steps
from truestep.watch.script.sites import Sites

LOADER = DataLoader(TensorDataset(torch.zeros(10, 2)), batch_size=3)


def look(found: list[Any]) -> None:
    found.append(expected_steps(Sites()))


def in_range(found: list[Any]) -> None:
    num = 7
    for _ in range(1, num):
        look(found)


def over_loader(found: list[Any]) -> None:
    given = SimpleNamespace(epochs=5)
    for _ in range(given.epochs):
        in_epoch(found, LOADER)


def in_epoch(found: list[Any], loader: Any) -> None:
    for _ in enumerate(loader):
        look(found)


def over_tensor(found: list[Any]) -> None:
    data = torch.zeros(6, 2)
    for _ in data:
        look(found)


def early(found: list[Any]) -> None:
    for step in range(9):
        look(found)
        if step > 3:
            break


def accumulated(found: list[Any]) -> None:
    for step in range(8):
        if step % 4 == 3:
            look(found)


def counted(found: list[Any]) -> None:
    step = 0
    while step < 3:
        look(found)
        step += 1


def generated(found: list[Any]) -> None:
    for _ in (number for number in range(3)):
        look(found)


def within(found: list[Any]) -> None:
    if LOADER is not None:
        for _ in range(4):
            with torch.no_grad():
                look(found)


def without_loop(found: list[Any]) -> None:
    look(found)


@pytest.mark.parametrize(
    ("train", "wanted"),
    [
        (in_range, 6),
        (over_loader, 20),
        (over_tensor, 6),
        (within, 4),
        (early, None),
        (accumulated, None),
        (counted, None),
        (generated, None),
        (without_loop, None),
    ],
)
def test_steps_are_known_where_every_round_of_known_loops_makes_one(
    monkeypatch: pytest.MonkeyPatch, train: Callable[[list[Any]], None], wanted: int | None
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules[__name__])  # as if this was the script
    found: list[Any] = []
    train(found)
    assert set(found) == {wanted}
