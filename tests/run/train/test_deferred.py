"""Models built on the meta device: filled by `run.place`, with the same bits however they are cut."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset

import truestep as ts
from tests.processes import run_processes
from truestep import record
from truestep.base import memory
from truestep.errors import UsageError

LANES = 4


class Block(nn.Module):
    """Rows that three processes do not share evenly, a parameter and a buffer of its own, another dtype."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 10), nn.Linear(10, width)
        self.norm = nn.LayerNorm(width)
        self.gain = nn.Parameter(torch.empty(width))
        self.register_buffer("ramp", torch.arange(width, dtype=torch.float64), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.gain, 0.5, 1.5)
        self.ramp.copy_(torch.arange(len(self.ramp)))

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


def on_meta(build: Any = Words) -> nn.Module:
    with torch.device("meta"):
        return build()


def tokens() -> TensorDataset:
    return TensorDataset(torch.randint(0, 13, (32, 7), generator=torch.Generator().manual_seed(3)))


def everything(model: nn.Module) -> dict[str, Tensor]:
    """The state and the buffers that are not in it."""
    return model.state_dict() | dict(model.named_buffers())


def train(
    folder: str,
    parallel: str = "flat",
    stop_at: int | None = None,
    in_background: bool = True,
    recompute: tuple[str, ...] = (),
) -> tuple[str, str]:
    """Return the digests after `run.place` and after three steps."""
    snapshots = ts.Snapshots(every_steps=1, in_background=in_background)
    stopped = contextlib.suppress(InterruptedError)
    with stopped, ts.Run(folder, seed=7, lanes=LANES, threads=1, progress=False, snapshots=snapshots) as run:
        drawn = torch.get_rng_state()
        model = run.place(on_meta(), parallel=parallel, recompute=recompute)
        assert torch.equal(torch.get_rng_state(), drawn)
        assert model.head.weight is model.embedding.weight
        placed = ts.digest_state(everything(model))
        optimizer = AdamW(model.parameters(), lr=1e-2, foreach=True)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(tokens(), batch_size=8), steps=3):
            if step.index == stop_at:
                raise InterruptedError
            for (x,) in step:
                step.backward(F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()))
            step.update(optimizer, clip_norm=1.0)
        assert model.head.weight is model.embedding.weight
        return placed, ts.digest_state({"model": everything(model), "optimizer": optimizer.state_dict()})
    return placed, ""


def test_a_model_built_on_meta_begins_and_trains_with_the_same_bits_however_it_is_cut(tmp_path: Path) -> None:
    expected = train(str(tmp_path / "alone"))
    assert train(str(tmp_path / "ddp"), "ddp") == expected
    for size in (2, 3, 4):
        found = run_processes(train, str(tmp_path / f"{size}"), "fsdp", size=size)
        assert found == [expected] * size
    assert run_processes(train, str(tmp_path / "both"), "ddp", size=2) == [expected] * 2
    recomputed = ("fsdp", None, True, ("blocks.*",))
    assert run_processes(train, str(tmp_path / "less"), *recomputed, size=3) == [expected] * 3
    start = next(record.read(tmp_path / "alone" / "record.jsonl"))
    assert start["recipe"]["placement"][0]["init"] == "meta 1: reset_parameters"


def test_a_model_built_on_meta_goes_on_on_other_processes(tmp_path: Path) -> None:
    _, expected = train(str(tmp_path / "alone"))
    folder = str(tmp_path / "moved")
    run_processes(train, folder, "fsdp", 1, size=4)
    run_processes(train, folder, "fsdp", 2, False, size=3)
    assert train(folder, in_background=False)[1] == expected


def test_two_models_of_one_run_do_not_begin_alike(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=7, progress=False) as run:
        first, second = (run.place(on_meta(lambda: nn.Linear(4, 4))) for _ in range(2))
    assert not torch.equal(first.weight, second.weight)


def test_init_is_for_models_without_values(tmp_path: Path) -> None:
    with (
        ts.Run(tmp_path, seed=7, progress=False) as run,
        pytest.raises(UsageError, match=r"has its values already"),
    ):
        run.place(nn.Linear(2, 2), init=print)


def test_where_there_is_nothing_to_offload_that_is_said_and_changes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ts.Run(tmp_path / "alone", seed=7, lanes=LANES) as run:
        run.place(on_meta(), parallel="fsdp-offload")
    assert "nothing is offloaded" in "".join(capfd.readouterr())
    expected = train(str(tmp_path / "flat"))
    assert run_processes(train, str(tmp_path / "two"), "fsdp-offload", size=2) == [expected] * 2


WIDTH, DEPTH = 1024, 48


def rise_while_placing(folder: str, is_on_meta: bool) -> tuple[int, int]:
    """Return by how much the peak rose while a model was built and placed, and the size of its shard."""

    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)))

    with ts.Run(folder, seed=7, lanes=4, threads=1, progress=False) as run:
        run.place(on_meta(lambda: nn.Linear(4, 4)), parallel="fsdp")  # imports, once
        before = memory.process_peak_bytes()
        model = run.place(on_meta(build) if is_on_meta else build(), parallel="fsdp")
        rise = memory.process_peak_bytes() - before
        return rise, sum(item.to_local().nbytes for item in model.parameters())


def test_no_process_holds_more_than_its_shard_and_one_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_module = 4 * WIDTH * WIDTH
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(one_module // 8))  # what is freed is given back at once
    for rise, shard in run_processes(rise_while_placing, str(tmp_path / "meta"), True, size=4):
        assert shard == DEPTH * one_module // 4
        assert rise < shard + DEPTH // 3 * one_module  # one in full (3 measured); the rest is the allocator's
    for rise, _ in run_processes(rise_while_placing, str(tmp_path / "full"), False, size=4):
        assert rise > DEPTH * one_module  # or the test above could not fail
