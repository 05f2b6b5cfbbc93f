"""The same run on several processes: the same bits, and one voice."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW

import truestep as ts
from tests.processes import run_processes
from tests.run.train import small
from truestep import record
from truestep.errors import DifferentRun, NonFiniteError, UsageError
from truestep.run.checkpoint import Store

LANES = 5  # of batches of 16, and of 2 at the end of an epoch: then some lanes and processes have nothing


def train(folder: str, parallel: str = "ddp", stop_at: int | None = None, **options: Any) -> tuple[str, Any]:
    """Return the digest of everything trained; in the first process, which writes it, also the record."""
    options = {"lanes": LANES, "seed": 1, "threads": 1, "progress": False, **options}
    num_steps = options.pop("num_steps", 10)
    model = options.pop("model", None)
    digest = ""
    stopped = contextlib.suppress(InterruptedError)
    with stopped, ts.Run(folder, snapshots=ts.Snapshots(every_steps=3), **options) as run:
        model = run.place(small.net() if model is None else model(), parallel=parallel)
        optimizer = AdamW(model.parameters(), lr=1e-2)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(small.data(), batch_size=16), steps=num_steps):
            if step.index == stop_at:
                raise InterruptedError
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer, clip_norm=0.1)
        digest = ts.digest_state({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if not run.is_first:  # the record may still be on its way
        return digest, None
    losses = {
        step: (values["loss"], values["grad_norm"])
        for step, values in record.read_steps(Path(folder) / "record.jsonl").items()
    }
    return digest, losses


def count_threads(folder: str) -> list[int]:
    """Return how many threads this process has after each of some runs."""
    counts = []
    for number in range(4):
        train(f"{folder}/{number}", num_steps=2)
        counts.append(len([*Path("/proc/self/task").iterdir()]))
    return counts


def test_finished_runs_leave_no_threads_behind(tmp_path: Path) -> None:
    for counts in run_processes(count_threads, str(tmp_path), size=2):
        assert counts[-1] <= counts[0] + 1, counts  # one that is just ending


@pytest.mark.parametrize("parallel", ["flat", "ddp"])
@pytest.mark.practice("P64")
def test_any_number_of_processes_gives_the_same_bits(tmp_path: Path, parallel: str) -> None:
    """The same script on 1 to 5 processes gives bit-for-bit identical weights."""
    digest, losses = train(str(tmp_path / "alone"))
    assert len(losses) == 10
    assert any(norm > 0.1 for _, norm in losses.values())  # or clipping would prove nothing
    for size in (2, 3, 4, 5):
        results = run_processes(train, str(tmp_path / f"{size}"), parallel, size=size)
        assert [found for found, _ in results] == [digest] * size
        assert results[0][1] == losses


def test_a_run_goes_on_with_any_other_number_of_processes(tmp_path: Path) -> None:
    digest, _ = train(str(tmp_path / "alone"))
    folder = str(tmp_path / "moved")
    run_processes(train, folder, "ddp", 4, size=4)
    run_processes(train, folder, "flat", 7, size=3)
    assert train(folder)[0] == digest


def train_in_two_passes(folder: str, parallel: str, num_samples: int = 50) -> str:
    """In the first pass of a step another model learns from this one's output, as a GAN's critic does."""
    with ts.Run(folder, seed=1, lanes=LANES, threads=1, progress=False) as run:
        model, judge = run.place(small.net(), parallel=parallel), run.place(nn.Linear(3, 3))
        first, second = AdamW(judge.parameters()), AdamW(model.parameters())
        run.track(model=model, judge=judge, first=first, second=second)
        for step in run.steps(ts.Loader(small.data(num_samples), batch_size=16), steps=6):
            for x, y in step:
                step.backward(F.cross_entropy(judge(model(x).detach()), y))
            step.update(first)
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(second, clip_norm=0.1)
        return ts.digest_state({"model": model.state_dict(), "judge": judge.state_dict()})


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_forward_without_a_backward_does_not_confuse_the_next_pass(tmp_path: Path, parallel: str) -> None:
    digest = train_in_two_passes(str(tmp_path / "alone"), parallel)
    for size in (2, 3):
        found = run_processes(train_in_two_passes, str(tmp_path / f"{size}"), parallel, size=size)
        assert found == [digest] * size


def train_with_two_losses(folder: str, parallel: str, first: int = 0) -> str:
    """From a step on, each lane has two losses with a forward and a backward each, as a GAN's critic has."""
    with ts.Run(folder, seed=1, lanes=4, threads=1, progress=False) as run:
        model = run.place(small.net(), parallel=parallel)
        optimizer = AdamW(model.parameters())
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(small.data(), batch_size=16), steps=4):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
                if step.index >= first:
                    step.backward(model(-x).square().mean())
            step.update(optimizer)
        return ts.digest_state([model.state_dict(), optimizer.state_dict()])


@pytest.mark.parametrize("parallel", ["ddp", "flat"])
def test_two_losses_of_a_lane_give_the_same_bits(tmp_path: Path, parallel: str) -> None:
    digest = train_with_two_losses(str(tmp_path / "alone"), parallel)
    for size in (2, 4):
        found = run_processes(train_with_two_losses, str(tmp_path / f"{size}"), parallel, size=size)
        assert found == [digest] * size


@pytest.mark.parametrize(("parallel", "first"), [("ddp", 2), ("fsdp", 0)])
def test_a_second_loss_is_refused_where_gradients_left_with_the_first(
    tmp_path: Path, parallel: str, first: int
) -> None:
    with pytest.raises(RuntimeError, match=r"called twice in one lane.*parallel='flat'"):
        run_processes(train_with_two_losses, str(tmp_path), parallel, first, size=2)


def train_with_a_stray_forward(folder: str, place: str) -> str:
    """Run the model where nothing is learned from it, without no_grad, as code that logs often does."""
    snapshots = ts.Snapshots(every_steps=2)  # the step after one leaves a witness, and overlaps nothing
    with ts.Run(folder, seed=1, lanes=4, threads=1, progress=False, snapshots=snapshots) as run:
        model = run.place(small.net())
        optimizer = AdamW(model.parameters())
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(small.data(), batch_size=16), steps=8):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
                if place == "in a lane":
                    model(x)
            if place == "after lanes":
                model(torch.ones(2, 6))
            step.update(optimizer)
            if place == "after the update":
                model(torch.ones(2, 6))
        return ts.digest_state(model.state_dict())


@pytest.mark.parametrize("place", ["in a lane", "after lanes", "after the update"])
def test_a_forward_that_nothing_is_learned_from_changes_no_bit(tmp_path: Path, place: str) -> None:
    digest = train_with_a_stray_forward(str(tmp_path / "alone"), place)
    for size in (2, 4):
        found = run_processes(train_with_a_stray_forward, str(tmp_path / f"{size}"), place, size=size)
        assert found == [digest] * size


def test_a_batch_that_leaves_processes_without_lanes_may_follow_the_first(tmp_path: Path) -> None:
    digest = train_in_two_passes(str(tmp_path / "alone"), "ddp", 18)
    found = run_processes(train_in_two_passes, str(tmp_path / "four"), "ddp", 18, size=4, timeout_s=60.0)
    assert found == [digest] * 4


class Branches(nn.Module):
    """A model of which each lane uses one branch or the other, by chance, and one part is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 3) for _ in range(2))
        self.unused = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.branches[int(torch.rand(()) < 0.5)](x)


def test_parameters_that_are_not_always_used_keep_their_bits(tmp_path: Path) -> None:
    digest, _ = train(str(tmp_path / "alone"), model=Branches)
    for size in (2, 3):
        results = run_processes(train_branches, str(tmp_path / f"{size}"), "flat", size=size)
        assert results == [digest] * size


def train_branches(folder: str, parallel: str) -> str:
    return train(folder, parallel, model=Branches)[0]


class HalfUsed(Branches):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.branches[0](x)


def say_what_is_unused(folder: str) -> str:
    with pytest.raises(UsageError, match=r"branches.1.weight.*parallel='flat'") as caught:
        train(folder, "ddp", model=HalfUsed)
    return str(caught.value)


def test_unused_parameters_are_named_where_buckets_wait_for_them(tmp_path: Path) -> None:
    run_processes(say_what_is_unused, str(tmp_path), size=2)


def train_without_lanes(folder: str, num_steps: int = 10) -> str:
    return train(folder, lanes=None, num_steps=num_steps)[0]


def test_without_lanes_a_run_is_tied_to_its_number_of_processes(tmp_path: Path) -> None:
    (digest, *others) = run_processes(train_without_lanes, str(tmp_path / "whole"), size=3)
    assert others == [digest] * 2
    run_processes(train_without_lanes, str(tmp_path / "parts"), 4, size=3)
    assert run_processes(train_without_lanes, str(tmp_path / "parts"), size=3) == [digest] * 3
    start = next(record.read(tmp_path / "whole" / "record.jsonl"))
    assert "the result is tied to 3 processes" in start["note"]
    with pytest.raises(RuntimeError, match=r"(?s)lanes: 3 when saved, 2 now"):
        run_processes(train_without_lanes, str(tmp_path / "parts"), 12, size=2)


def be_interrupted(folder: str) -> tuple[int, int]:
    run = ts.Run(folder, seed=1, lanes=LANES, threads=1, progress=False)
    model = run.place(small.net())
    optimizer = AdamW(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    try:
        for step in run.steps(ts.Loader(small.data(), batch_size=16), steps=50):
            if step.index == 5 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer)
    except SystemExit as stopped:
        return stopped.code, run.cursor
    finally:
        run.close()
    return 0, run.cursor


def test_a_signal_to_one_process_stops_all_at_the_same_step(tmp_path: Path) -> None:
    results = run_processes(be_interrupted, str(tmp_path), size=3)
    assert results == [(143, results[0][1])] * 3
    assert 6 <= results[0][1] <= 8
    assert list((tmp_path / "snapshots").glob(f"step-*{results[0][1]}.witness.json"))


class Exploding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = small.net(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        is_time = self.calls > 4 and dist.is_initialized() and dist.get_rank() == 1
        return self.inner(x) * (float("nan") if is_time else 1.0)


def explode(folder: str) -> str:
    with pytest.raises(NonFiniteError) as caught:
        train(folder, model=Exploding)
    assert caught.value.is_shared
    return str(caught.value)


def test_a_loss_that_is_not_finite_anywhere_stops_all(tmp_path: Path) -> None:
    messages = run_processes(explode, str(tmp_path), size=2)
    assert messages[0] == messages[1]
    assert "the loss of lane" in messages[0] and "is nan" in messages[0]


class Unlike(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 3)
        if dist.get_rank() == 1:
            nn.init.zeros_(self.bias)


def begin_unlike(folder: str) -> None:
    with pytest.raises(UsageError, match=r"model.bias has other values on process 1"):
        train(folder, model=Unlike)


def test_models_that_differ_between_processes_are_refused(tmp_path: Path) -> None:
    run_processes(begin_unlike, str(tmp_path), size=2)


def begin_with_another(folder: str, what: str) -> str:
    rank = dist.get_rank()
    options = {"seed": 1, "batch_size": 16, "num_samples": 50}
    options[what] += rank
    with ts.Run(folder, seed=options["seed"], lanes=LANES, progress=False) as run:
        model = run.place(small.net())
        run.track(model=model, optimizer=AdamW(model.parameters()))
        loader = ts.Loader(small.data(options["num_samples"]), batch_size=options["batch_size"])
        with pytest.raises(UsageError) as caught:
            run.steps(loader, steps=3)
    assert caught.value.is_shared
    return str(caught.value)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("seed", "seed is 2 on process 1 and 1 on process 0"),
        ("batch_size", "batch_size is 17 on process 1 and 16 on process 0"),
        ("num_samples", "num_samples is 51 on process 1 and 50 on process 0"),
    ],
)
def test_processes_that_begin_with_other_values_are_refused(tmp_path: Path, what: str, words: str) -> None:
    messages = run_processes(begin_with_another, str(tmp_path), what, size=2, timeout_s=60.0)
    assert messages[0] == messages[1] and words in messages[0]


def weigh_nothing(folder: str) -> str:
    with ts.Run(folder, seed=1, lanes=LANES, progress=False) as run:
        model = run.place(small.net())
        optimizer = AdamW(model.parameters())
        run.track(model=model, optimizer=optimizer)
        step = next(iter(run.steps(ts.Loader(small.data(), batch_size=16), steps=3)))
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y), weight=0)
        with pytest.raises(UsageError) as caught:
            step.update(optimizer)
    return str(caught.value)


def test_a_batch_without_any_weight_is_refused_on_all_processes(tmp_path: Path) -> None:
    messages = run_processes(weigh_nothing, str(tmp_path), size=2, timeout_s=60.0)
    assert all(message.startswith("all lanes of step 1 have weight 0") for message in messages)


def use_after_close(folder: str, precision: str) -> list[str]:
    with ts.Run(folder, seed=1, lanes=LANES, progress=False) as run:
        model = run.place(small.net(), precision=precision)  # type: ignore[arg-type]
        optimizer = AdamW(model.parameters())
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(small.data(), batch_size=16), steps=2):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer)
            assert type(model.forward).__name__ == "_Forward"
    if dist.get_rank() == 0:  # the other one does not take part
        x, y = small.data()[:8]
        F.cross_entropy(model(x), y).backward()
    return [type(item).__name__ for key, item in vars(model).items() if key == "forward"]


@pytest.mark.parametrize(("precision", "own"), [("fp32", []), ("bf16", ["Autocast"])])
def test_a_model_computes_by_itself_after_close(tmp_path: Path, precision: str, own: list[str]) -> None:
    found = run_processes(use_after_close, str(tmp_path), precision, size=2, timeout_s=60.0)
    assert found == [own] * 2


def resume_without_own_witness(folder: str) -> str:
    if dist.get_rank() == 1:  # a file system that shows this process the file too late
        Store.attached = lambda *_: None  # type: ignore[method-assign]
    return train(folder)[0]


def test_the_first_process_reads_the_witness_for_all(tmp_path: Path) -> None:
    digest, _ = train(str(tmp_path / "alone"))
    folder = str(tmp_path / "two")
    run_processes(train, folder, "ddp", 4, size=2)
    assert list((tmp_path / "two/snapshots").glob("*witness*"))
    found = run_processes(resume_without_own_witness, folder, size=2, timeout_s=60.0)
    assert found == [digest] * 2


def claim_twice(folder: str) -> str:
    run = ts.Run(folder, seed=1, lanes=4, progress=False)
    model = small.net()
    run.track(model=model, optimizer=AdamW(model.parameters()))
    with pytest.raises(DifferentRun) as caught:
        run.steps(ts.Loader(small.data(), batch_size=16), steps=5)
    return str(caught.value)


def test_another_number_of_lanes_is_refused_on_all_processes(tmp_path: Path) -> None:
    train(str(tmp_path), num_steps=3)
    messages = run_processes(claim_twice, str(tmp_path), size=2)
    assert messages[0] == messages[1]
    assert "lanes: 5 when saved, 4 now" in messages[0]


def train_sharded(folder: str, stop_at: int | None) -> str:
    return train(folder, "fsdp", stop_at)[0]


def test_sharded_models_give_the_same_bits_and_move_to_other_layouts(tmp_path: Path) -> None:
    digest, _ = train(str(tmp_path / "alone"))
    assert run_processes(train_sharded, str(tmp_path / "sharded"), None, size=3) == [digest] * 3
    folder = str(tmp_path / "moved")
    run_processes(train_sharded, folder, 4, size=4)
    run_processes(train, folder, "ddp", 7, size=2)
    assert run_processes(train_sharded, folder, None, size=3) == [digest] * 3


def shard_with(folder: str, case: str) -> str:
    run = ts.Run(folder, seed=1, lanes=LANES, progress=False)
    model = small.net()
    early = AdamW(model.parameters())
    run.place(model, parallel="fsdp")
    late = AdamW(model.parameters(), fused=case == "fused")
    run.track(model=model, optimizer=early if case == "early" else late)
    with pytest.raises(UsageError) as caught:
        run.steps(ts.Loader(small.data(), batch_size=16), steps=3)
    return str(caught.value)


@pytest.mark.parametrize(
    ("case", "message"),
    [("fused", "fused=True, whose kernel gives other bits"), ("early", "make the optimizer after run.place")],
)
def test_what_sharding_cannot_keep_is_refused(tmp_path: Path, case: str, message: str) -> None:
    assert message in run_processes(shard_with, str(tmp_path), case, size=2)[0]
