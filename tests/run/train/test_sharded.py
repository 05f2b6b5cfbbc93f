"""Sharded models with tied weights, uneven rows and recomputed blocks: the bits of one process."""

import contextlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset

import truestep as ts
from tests.processes import run_processes
from truestep.errors import UsageError

LANES = 4


class Block(nn.Module):
    """Rows that three processes do not share evenly, a parameter and a buffer of its own, another dtype."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 10), nn.Linear(10, width)
        self.norm = nn.LayerNorm(width)
        self.gain = nn.Parameter(torch.empty(width).uniform_(0.5, 1.5))
        self.register_buffer("ramp", torch.arange(width, dtype=torch.float64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.down(F.relu(self.up(self.norm(x + self.ramp.to(x.dtype)))))


class Words(nn.Module):
    """Tied weights of an embedding and a head that has a bias of its own."""

    def __init__(self, num_words: int = 13, width: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, num_words)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.dropout(x))


def tokens() -> TensorDataset:
    return TensorDataset(torch.randint(0, 13, (32, 7), generator=torch.Generator().manual_seed(3)))


def train(
    folder: str,
    parallel: str = "flat",
    stop_at: int | None = None,
    in_background: bool = True,
    recompute: tuple[str, ...] = (),
) -> str:
    """Return the digest after three steps."""
    snapshots = ts.Snapshots(every_steps=1, in_background=in_background)
    stopped = contextlib.suppress(InterruptedError)
    with stopped, ts.Run(folder, seed=7, lanes=LANES, threads=1, progress=False, snapshots=snapshots) as run:
        model = run.place(Words(), parallel=parallel, recompute=recompute)
        optimizer = AdamW(model.parameters(), lr=1e-2, foreach=True)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(tokens(), batch_size=8), steps=3):
            if step.index == stop_at:
                raise InterruptedError
            for (x,) in step:
                step.backward(F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()))
            step.update(optimizer, clip_norm=1.0)
        assert model.head.weight is model.embedding.weight
        return ts.digest_state({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    return ""


@pytest.mark.practice("P29")
def test_p29_tied_weights_stay_tied_however_the_model_is_cut(tmp_path: Path) -> None:
    """Tied weights stay tied on any number of processes, sharded or not, with the bits of one process."""
    expected = train(str(tmp_path / "alone"))
    for size in (2, 3, 4):
        assert run_processes(train, str(tmp_path / f"{size}"), "fsdp", size=size) == [expected] * size
    assert run_processes(train, str(tmp_path / "both"), "ddp", size=2) == [expected] * 2
    recomputed = ("fsdp", None, True, ("blocks.*",))
    assert run_processes(train, str(tmp_path / "less"), *recomputed, size=3) == [expected] * 3


def test_a_sharded_model_goes_on_on_other_processes(tmp_path: Path) -> None:
    expected = train(str(tmp_path / "alone"))
    folder = str(tmp_path / "moved")
    run_processes(train, folder, "fsdp", 1, size=4)
    run_processes(train, folder, "fsdp", 2, False, size=3)
    assert train(folder, in_background=False) == expected


def test_a_model_without_values_is_refused_by_name(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2))
    refused = pytest.raises(UsageError, match=r"0\.weight is on the meta device .* model\.to_empty")
    with ts.Run(tmp_path, seed=7, progress=False) as run, refused:
        run.place(model)
