"""Audits: a process that computes or holds other bits is named, and nothing else changes."""

import contextlib
import os
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
from truestep.errors import AuditFailed, UsageError
from truestep.run.train.audit import AuditPlan, assign, decide

LANES = 8


def flip(tensor: torch.Tensor, bit: int = 12) -> None:
    """Flip one bit of one value."""
    with torch.no_grad():
        tensor.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << bit)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def train(folder: str, fault: str = "", rank: int = -1, parallel: str = "ddp", **options: Any) -> Any:
    """Return the digest, or who was found wrong: (step, ranks, repeats, message)."""
    every_steps = options.pop("every_steps", None)
    made = {"lanes": LANES, "seed": 1, "threads": 1, "progress": False, "audit_every": 1, **options}
    is_faulty, at = dist.is_initialized() and dist.get_rank() == rank, 5
    if fault.endswith("once"):
        at, num_bad = 4, 1  # where the last process but one audits another, first of all
    else:
        num_bad = 10**9
    snapshots = ts.Snapshots(every_s=None, every_steps=every_steps)
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(ts.Run(folder, snapshots=snapshots, **made))
        has_norm = parallel == "ddp"  # then no lane may have a single sample; else some have none at all
        model = run.place(net() if has_norm else small.net(), parallel=parallel)
        optimizer = AdamW(model.parameters(), lr=1e-2)
        run.track(model=model, optimizer=optimizer)
        index = 0
        try:
            loader = ts.Loader(small.data(), batch_size=16, drop_last=has_norm)
            for step in run.steps(loader, steps=20):
                index = step.index
                if is_faulty and index == at and fault == "weights":
                    flip(next(model.parameters()))
                if is_faulty and index == at and fault == "optimizer":
                    flip(optimizer.state[next(model.parameters())]["exp_avg"])
                if is_faulty and index == at and fault == "sign":
                    optimizer.state[next(model.parameters())]["exp_avg_sq"].neg_()
                for x, y in step:
                    out = model(x)
                    if is_faulty and fault.startswith("activation") and index >= at and num_bad:
                        num_bad -= 1
                        flip(out.data, 21)
                    if fault == "unstable":
                        out = out + torch.frombuffer(bytearray(os.urandom(12)), dtype=torch.int32) / 2**31
                    loss = F.cross_entropy(out, y)
                    step.backward(loss)
                    step.log(lane_loss=loss)
                step.update(optimizer, clip_norm=0.1)
        except AuditFailed as error:
            return index, error.ranks, error.repeats, str(error)
        return ts.digest_state({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


@pytest.mark.parametrize("parallel", ["flat", "ddp", "fsdp"])
def test_audits_do_not_change_the_result(tmp_path: Path, parallel: str) -> None:
    """An audited run has the bits of one that is not, and its record has the same values."""
    plain = run_processes(train, str(tmp_path / "plain"), "", -1, parallel, size=3)
    assert isinstance(plain[0], str)
    audited = run_processes(audit_often, str(tmp_path / "audited"), parallel, size=3)
    assert audited == plain
    values = [
        {
            step: row.get("lane_loss")
            for step, row in record.read_steps(tmp_path / name / "record.jsonl").items()
        }
        for name in ("plain", "audited")
    ]
    assert values[0] == values[1]


def audit_often(folder: str, parallel: str) -> Any:
    return train(folder, parallel=parallel, every_steps=3, audit_every=2)


@pytest.mark.parametrize(
    ("fault", "repeats"),
    [("weights", True), ("optimizer", True), ("activation", True), ("activation once", False)],
)
def test_process_that_computes_wrong_bits_is_named(tmp_path: Path, fault: str, repeats: bool) -> None:
    """A bit that flips on one process stops the run before an update, and the process is named."""
    found = run_processes(train, str(tmp_path), fault, 2, size=4)
    assert found == [found[0]] * 4  # all stop, at the same step
    step, ranks, is_repeated, message = found[0]
    assert ranks == [2], message
    assert is_repeated == repeats
    assert "process 2 (" in message
    assert ", cpu)" in message
    assert 4 <= step <= 5 + 4
    lines = [line for line in record.read(tmp_path / "record.jsonl") if line["kind"] == "audit"]
    assert [(line["step"], line["ranks"], line["devices"]) for line in lines] == [(step, [2], ["cpu"])]


def test_sharded_model_is_audited_too(tmp_path: Path) -> None:
    found = run_processes(train, str(tmp_path), "activation", 1, "fsdp", size=3)
    assert found == [found[0]] * 3
    assert found[0][1] == [1], found


def test_weights_are_compared_before_a_snapshot(tmp_path: Path) -> None:
    """Without audits too: a snapshot of weights that differ between processes is not taken."""
    found = run_processes(train_to_snapshot, str(tmp_path), size=3)
    step, ranks, _, message = found[0]
    assert (step, ranks) == (5, [1]), message
    assert "model.0.bias" in message or "model.0.weight" in message
    assert [path.name for path in sorted((tmp_path / "snapshots").glob("step-*/"))] == ["step-000000000003"]


def test_process_whose_weights_are_no_longer_finite_is_named(tmp_path: Path) -> None:
    """Without audits too: the root of a negative second moment is NaN, and so is the next loss."""
    step, ranks, _, message = run_processes(train_without_audits, str(tmp_path), size=3)[0]
    assert (step, ranks) == (6, [1]), message


def train_without_audits(folder: str) -> Any:
    return train(folder, "sign", 1, audit_every=None)


def train_to_snapshot(folder: str) -> Any:
    return train(folder, "weights", 1, every_steps=3, audit_every=None)


def test_loop_that_is_not_reproducible_accuses_no_single_process(tmp_path: Path) -> None:
    step, ranks, _, message = run_processes(train, str(tmp_path), "unstable", size=3)[0]
    assert (step, sorted(ranks)) == (0, [0, 1, 2])
    assert "truestep verify" in message


def test_two_processes_name_each_other_unless_one_try_was_right(tmp_path: Path) -> None:
    found = run_processes(train, str(tmp_path / "weights"), "weights", 1, size=2)
    assert sorted(found[0][1]) == [0, 1]
    assert "no other process decides" in found[0][3]
    found = run_processes(train, str(tmp_path / "once"), "activation once", 1, size=2)
    assert found[0][1:3] == ([1], False)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_every_process_is_audited_and_audits_in_turn(size: int) -> None:
    shares = [[2 * rank, 2 * rank + 1] for rank in range(size)]
    found = [assign(number, shares) for number in range(2 * size * (size - 1))]
    for first in range(0, len(found) - size, size):
        lap = found[first : first + size]
        assert {item.owner for item in lap} == {item.auditor for item in lap} == set(range(size))
    assert {item.lane for item in found} == set(range(2 * size))
    assert len({(item.owner, item.auditor) for item in found}) == size * (size - 1)  # every pair meets
    for item in found:
        assert len(set(item.ranks)) == min(size, 3)
        assert item.lane in shares[item.owner]


def test_plan_skips_processes_without_samples() -> None:
    """A small last batch leaves some processes without a lane; others are audited then."""
    plans = [AuditPlan(every=3, rank=rank, size=4, num_lanes=4, is_dealt=False) for rank in range(4)]
    assert [plans[0].at(step, 2) is not None for step in range(6)] == [False, False, True] * 2
    for step in range(2, 60, 3):
        found = plans[0].at(step, 2)
        assert found is not None
        assert found.owner in (1, 3)  # who has the lanes 1 and 3, which two samples fill
        extra = [plan.extra_lane(step, 2) for plan in plans]
        assert [rank for rank, lane in enumerate(extra) if lane == found.lane] == sorted(found.ranks[1:])


@pytest.mark.parametrize(
    ("results", "ranks", "repeats"),
    [
        ({0: [1, 1], 1: [2, 2], 2: [1]}, [1], True),
        ({0: [3, 1], 1: [1, 1], 2: [1]}, [0], False),
        ({0: [3, 4], 1: [1, 1]}, [0], True),
        ({0: [1, 1], 1: [2, 2]}, [0, 1], True),
        ({0: [1, 2], 1: [3, 4], 2: [5]}, [0, 1, 2], True),
    ],
)
def test_verdict(results: dict[int, list[int]], ranks: list[int], repeats: bool) -> None:
    assert decide(results) == (ranks, repeats)


def test_unusable_intervals_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 step or more, got 0"):
        ts.Run(tmp_path, seed=1, lanes=2, audit_every=0)
    with pytest.raises(UsageError, match="audit_every needs lanes="):
        ts.Run(tmp_path, seed=1, audit_every=5)
