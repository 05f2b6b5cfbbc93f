"""Draws outside lanes: other ones in every step, and none of the first process alone in lanes."""

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

import truestep as ts
from tests.processes import run_processes
from tests.run.train.small import tracked


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


def train(folder: str) -> list[tuple[float, ...]]:
    """Return what is drawn outside lanes, once the generators are used."""
    draws = []
    with ts.Run(folder, seed=7, lanes=4, progress=False, threads=1) as run:
        model, optimizer = tracked(run)
        for step in run.steps(ts.Loader(Noisy(), batch_size=16), steps=5):
            draws.append(_drawn())
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer)
            draws.append(_drawn())
        return [*draws, _drawn()]


def test_every_step_has_draws_of_its_own_outside_lanes(tmp_path: Path) -> None:
    late = train(str(tmp_path))[4:]
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
