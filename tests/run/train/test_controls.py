"""Negative controls: what must change the bits does, or the proofs of equality would prove nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import truestep as ts
from tests.processes import run_processes
from tests.run.train.small import tracked
from truestep.run.dist.tree import LaneSum


def train(
    folder: str, *, lanes: int = 8, threads: int = 1, batch_size: int = 32, changed: int | None = None
) -> str:
    """Return the digest of a small model's weights after a few steps."""
    made = torch.Generator().manual_seed(3)
    x, y = torch.randn(96, 300, generator=made), torch.randint(0, 3, (96,), generator=made)
    if changed is not None:
        x[changed, 0] += 1e-3
    with ts.Run(folder, seed=1, lanes=lanes, threads=threads, progress=False) as run:
        model, optimizer = tracked(run, nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 3)))
        for step in run.steps(ts.Loader(TensorDataset(x, y), batch_size=batch_size), steps=4):
            for x_lane, y_lane in step:
                step.backward(F.cross_entropy(model(x_lane), y_lane))
            step.update(optimizer)
        return ts.digest_state(model.state_dict())


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train(str(tmp_path_factory.mktemp("reference")))


def test_the_reference_repeats_itself(tmp_path: Path, digest: str) -> None:
    assert train(str(tmp_path)) == digest
    assert run_processes(train, str(tmp_path / "three"), size=3) == [digest] * 3


@pytest.mark.parametrize(
    "change", [{"lanes": 4}, {"changed": 95}, {"threads": 2, "batch_size": 96}, {"batch_size": 31}], ids=str
)
def test_another_recipe_gives_other_bits(tmp_path: Path, digest: str, change: dict[str, Any]) -> None:
    if change.get("threads"):
        digest = train(str(tmp_path / "one"), batch_size=96)
    assert train(str(tmp_path / "other"), **change) != digest


def _push_in_sequence(self: LaneSum[Any], lane: int, value: Any, *, num_lanes: int = 1) -> None:
    start, held = (self._open[0][0], self._open[0][2]) if self._open else (lane, None)
    total = value if held is None else self._add(held, value)
    self._open = [(start, 8, total)]


def test_adding_lanes_one_after_the_other_gives_other_bits(
    tmp_path: Path, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LaneSum, "push", _push_in_sequence)
    assert train(str(tmp_path)) != digest
