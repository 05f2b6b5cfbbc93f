"""Draws outside lanes: the same on any number of processes and workers, after a kill, and between phases."""

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD
from torch.utils.data import Dataset
from torchmetrics.classification import MulticlassAccuracy

import truestep as ts
from tests.processes import run_processes
from tests.run.train.small import net, tracked

Draws = dict[str, tuple[float, ...]]


class Noisy(Dataset[Any]):
    """Samples that are drawn when they are read: without workers, in the process that trains."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(6) + random.random() + numpy.random.rand(), index % 3


class Killed(Exception):
    """Stands for the end of a process that nothing announced."""


def _drawn() -> tuple[float, ...]:
    return torch.rand(()).item(), random.gauss(0, 1), float(numpy.random.randn())


def train(
    folder: str,
    workers: int = 0,
    kill_at: int = -1,
    lanes: int = 4,
    places: tuple[str, ...] = ("body", "lane", "lanes", "end"),
) -> tuple[str, Draws]:
    """Train two phases with draws everywhere; return the weights' digest and what was drawn outside lanes."""
    draws: Draws = {}

    def draw(step: Any, place: str) -> float:
        if place not in places:
            return 1.0
        draws[f"{step.index} {place}"] = _drawn()
        return 1 + sum(draws[f"{step.index} {place}"])

    options = {"snapshots": ts.Snapshots(every_steps=3, in_background=False), "progress": False, "threads": 1}
    with ts.Run(folder, seed=7, lanes=lanes, **options) as run:
        model = run.place(net())
        optimizer = SGD(model.parameters(), lr=0.01)
        run.track(model=model, optimizer=optimizer)
        loader = ts.Loader(Noisy(), batch_size=16, workers=workers)
        for phase in range(2):
            for step in run.steps(loader, steps=5):
                weight = draw(step, "body")
                for x, y in step:
                    inside = sum(_drawn()) if "lane" in places else 1.0
                    step.backward(F.cross_entropy(model(weight * x + inside), y))
                draw(step, "lanes")
                step.update(optimizer, clip_norm=1.0)
                if step.index == 2:
                    run.evaluate(model, loader, metric=MulticlassAccuracy(num_classes=3))
                with torch.no_grad():
                    model[0].bias += 0.001 * draw(step, "end")
                if step.index == kill_at:
                    raise Killed
                if step.index == 8:
                    break
            draws[f"after {phase}"] = _drawn()
        return ts.digest_state(model.state_dict()), draws


def _digest_and_last_draws(result: tuple[str, Draws]) -> tuple[str, Draws]:
    return result[0], {name: drawn for name, drawn in result[1].items() if name.startswith("after")}


def test_draws_outside_lanes_are_the_same_on_any_number_of_processes(tmp_path: Path) -> None:
    digest, draws = train(str(tmp_path / "alone"))
    for size in (2, 3, 4):
        found = run_processes(train, str(tmp_path / f"{size}"), size=size)
        assert found == [(digest, draws)] * size


@pytest.mark.parametrize("lanes", [1, 4])
def test_draws_outside_lanes_are_the_same_with_any_number_of_workers(tmp_path: Path, lanes: int) -> None:
    assert train(str(tmp_path / "none"), 0, lanes=lanes) == train(str(tmp_path / "two"), 2, lanes=lanes)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("place", ["body", "lanes", "end"])
def test_draws_outside_lanes_go_on_exactly_after_a_kill(tmp_path: Path, lanes: int, place: str) -> None:
    whole = train(str(tmp_path / "whole"), lanes=lanes, places=(place,))
    for kill_at in (0, 3, 4, 6):
        folder = str(tmp_path / f"{kill_at}")
        with pytest.raises(Killed):
            train(folder, kill_at=kill_at, lanes=lanes, places=(place,))
        resumed = train(folder, lanes=lanes, places=(place,))
        assert _digest_and_last_draws(resumed) == _digest_and_last_draws(whole)
        assert resumed[1].items() <= whole[1].items()


def test_every_step_has_draws_of_its_own_outside_lanes(tmp_path: Path) -> None:
    _, draws = train(str(tmp_path), places=("body", "end"))
    late = [drawn for name, drawn in draws.items() if name.startswith(("2", "3", "4", "5", "after"))]
    for generator in range(3):
        assert len({drawn[generator] for drawn in late}) == len(late)


def train_with_draws_on_the_first(folder: str, stop_at: int = -1, leave_at: int = -1) -> str:
    """Draw outside lanes on the first process alone, as something that it logs may do, then inside lanes."""
    snapshots = ts.Snapshots(every_steps=1, in_background=False)
    stopped = contextlib.suppress(Killed)
    with stopped, ts.Run(folder, seed=7, lanes=4, progress=False, threads=1, snapshots=snapshots) as run:
        model, optimizer = tracked(run)
        for step in run.steps(ts.Loader(Noisy(), batch_size=16), steps=8):
            if step.index == stop_at:
                raise Killed
            if step.index == 1 and run.is_first:
                torch.rand(3)
            for x, y in step:
                noise = random.random() if step.index > 2 else 0.0
                step.backward(F.cross_entropy(model(x + noise), y))
            step.update(optimizer)
            if step.index == 2 and run.is_first:
                random.random()
            if step.index == leave_at:
                break
        return ts.digest_state(model.state_dict())
    return ""


def test_draws_on_the_first_process_alone_change_nothing_in_lanes(tmp_path: Path) -> None:
    whole = train_with_draws_on_the_first(str(tmp_path / "alone"))
    found = run_processes(train_with_draws_on_the_first, str(tmp_path / "three"), size=3)
    assert found == [whole] * 3
    train_with_draws_on_the_first(str(tmp_path / "cut"), 3)
    assert run_processes(train_with_draws_on_the_first, str(tmp_path / "cut"), size=2) == [whole] * 2


def test_a_run_that_was_left_early_ends_there_on_another_number_of_processes(tmp_path: Path) -> None:
    (left, _) = run_processes(train_with_draws_on_the_first, str(tmp_path), -1, 4, size=2)
    assert train_with_draws_on_the_first(str(tmp_path)) == left
    assert run_processes(train_with_draws_on_the_first, str(tmp_path), size=3) == [left] * 3
