"""What scripts do every day: dictionaries as batches, losses from inside the model, settings for bits."""

import contextlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.optim import AdamW

import truestep as ts
from tests.zoo import t5
from truestep.base.device import pick_device
from truestep.run.train.fingerprint import pin_settings
from truestep.run.train.place import move


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@pytest.mark.practice("P44")
def test_p44_a_batch_of_any_structure_is_moved_whole() -> None:
    """Tensors in any nest of dictionaries, lists and tuples go to the device together."""
    x = torch.zeros(2)
    batch: Any = {"x": x, "more": [x, (x, Pair(x, x))], "padded": ts.pad_collate()([x, x]), "name": "a"}
    moved = move(batch, torch.device("meta"))
    leaves = torch.utils._pytree.tree_leaves(moved)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    assert len(tensors) == len(torch.utils._pytree.tree_leaves(batch)) - 1
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert type(moved["more"][1][1]) is Pair and moved["name"] == "a"


@pytest.mark.practice("P05")
def test_p05_a_run_picks_the_device_once_by_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run picks this process's GPU, or the CPU if there is none, and moves model and batches to it."""
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        assert run.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
        model = run.place(torch.nn.Linear(2, 1))
        optimizer = AdamW(model.parameters())
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(torch.ones(4, 2), batch_size=2), steps=2):
            for x in step:
                assert x.device == model.weight.device == run.device
                step.backward(model(x).mean())
            step.update(optimizer)
    # There is no card here: what torch says of cards is made up, and no code runs on one.
    chosen: list[int] = []
    for name, value in {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "device_count": lambda: 2,
        "set_device_index": chosen.append,
    }.items():
        monkeypatch.setattr(torch.accelerator, name, value)
    picked = [pick_device(local_rank) for local_rank in range(3)]
    assert [str(device) for device in picked] == ["cuda:0", "cuda:1", "cuda:0"]
    assert chosen == [0, 1, 0]


@pytest.mark.practice("P58")
def test_p58_a_run_switches_deterministic_algorithms_on(tmp_path: Path) -> None:
    """A run refuses nondeterministic kernels, and switches cuDNN's benchmark off."""
    torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(False)  # other runs in this process have left it on
    with ts.Run(tmp_path, seed=1, progress=False):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.backends.cudnn.benchmark


def test_threads_are_shared_out_where_the_system_tells_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    before = torch.get_num_threads()
    pin_settings(None, num_lanes=2)
    found = torch.get_num_threads()
    torch.set_num_threads(before)
    assert found == 2


def train(folder: Path, *, stop_at: int | None = None) -> str:
    model, inputs = t5()
    rows = [{name: tensor[index % 4] for name, tensor in inputs.items()} for index in range(12)]
    snapshots = ts.Snapshots(every_steps=1)
    stopped = contextlib.suppress(InterruptedError)
    with stopped, ts.Run(folder, seed=1, lanes=2, progress=False, snapshots=snapshots) as run:
        model = run.place(model)
        optimizer = AdamW(ts.decay_groups(model, weight_decay=0.01), lr=1e-2)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(rows, batch_size=4), steps=6):
            if step.index == stop_at:
                raise InterruptedError
            for batch in step:
                step.backward(model(**batch).loss)
            step.update(optimizer, clip_norm=1.0)
        return ts.digest_state(model.state_dict())
    return ""


@pytest.mark.practice("P75")
def test_p75_a_sequence_to_sequence_model_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """A T5 fed with dictionaries, which computes its own loss, trains and resumes to the same bits."""
    whole = train(tmp_path / "whole")
    assert train(tmp_path / "cut", stop_at=3) != whole
    assert train(tmp_path / "cut") == whole
