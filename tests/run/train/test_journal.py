"""What a run records by itself: the learning rate, memory, and how long it waited for data."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

import truestep as ts
from tests.run.train.small import data, net, tracked, train_on
from truestep.errors import UsageError
from truestep.record import Record, read
from truestep.run.train.journal import Journal, _losses
from truestep.run.train.step import Step


class Slow(torch.utils.data.Dataset[Any]):
    """Takes a hundredth of a second for each sample."""

    def __init__(self) -> None:
        self._data = data(12)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return self._data[index]


def _values(folder: Path) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for event in read(folder / "record.jsonl"):
        if event["kind"] == "values":
            found.setdefault(event["name"], {}).update(zip(event["steps"], event["values"], strict=True))
    return found


def test_rate_is_recorded_when_it_changes_and_memory_when_it_grows(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        model = run.place(net())
        optimizer = SGD(model.parameters(), lr=0.4)
        scheduler = StepLR(optimizer, step_size=3, gamma=0.5)
        run.track(model=model, optimizer=optimizer, scheduler=scheduler)
        for step in run.steps(ts.Loader(data(), batch_size=16), steps=8):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer, scheduler=scheduler)
            step.log(five=torch.tensor(5.0))
    values = _values(tmp_path)
    assert values["learning_rate"] == {0: 0.4, 3: 0.2, 6: 0.1}
    assert values["five"] == dict.fromkeys(range(8), 5.0)
    assert all(peak > 50e6 for peak in values["memory_bytes"].values())


def test_waiting_for_data_is_recorded_for_each_step(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        model, optimizer = tracked(run)
        train_on(run, model, optimizer, loader=ts.Loader(Slow(), batch_size=4), steps=3)
    waits = [wait for event in read(tmp_path / "record.jsonl") for wait in event.get("wait_us", [])]
    assert len(waits) == 3 and min(waits) >= 40_000


@pytest.mark.parametrize("is_tensor", [False, True])
def test_a_second_optimizer_has_a_name_of_its_own(tmp_path: Path, is_tensor: bool) -> None:
    journal = Journal(Record(tmp_path / "record.jsonl"))
    rates = [torch.tensor(0.5), torch.tensor(0.25)] if is_tensor else [0.5, 0.25]
    both = [SGD(net().parameters(), lr=rate, foreach=False) for rate in rates]
    journal.name_rates(both)
    for step in range(4):
        for optimizer in reversed(both):
            journal.add_rate(optimizer, step=step)
        if step == 1:
            if is_tensor:
                both[1].param_groups[0]["lr"].fill_(0.125)
            else:
                both[1].param_groups[0]["lr"] = 0.125
    journal.flush()
    assert _values(tmp_path) == {"learning_rate": {0: 0.5}, "learning_rate.2": {0: 0.25, 2: 0.125}}


def test_values_of_several_dtypes_are_fetched_exactly(tmp_path: Path) -> None:
    journal = Journal(Record(tmp_path / "record.jsonl"))
    given = [torch.tensor(2**53 + 1), torch.tensor(0.1), 0.1, torch.tensor(0.1, dtype=torch.float64)]
    for step, value in enumerate(given):
        journal.add_value("x", value, step=step)
    journal.flush()
    assert list(_values(tmp_path)["x"].values()) == [float(2**53 + 1), 0.10000000149011612, 0.1, 0.1]


def test_a_loss_is_divided_by_its_weight_also_where_one_lane_is_all_there_is() -> None:
    assert _losses([(0, 0.0, [(3, 10.0, 5.0)], 0.0)], iter([10.0, 5.0])) == [2.0]
    plain = [(step, 0.0, [(0, loss, 1.0)], 0.0) for step, loss in enumerate([0.3, 0.7])]
    assert _losses(plain, iter([])) == [0.3, 0.7]


def _logged(folder: Path, log: Callable[[Step], None]) -> dict[str, dict[int, float]]:
    with ts.Run(folder, seed=1, progress=False) as run:
        model = run.place(net())
        optimizer = SGD(model.parameters(), lr=0.4)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(data(), batch_size=16), steps=2):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer)
            log(step)
    return _values(folder)


def test_numbers_of_every_kind_are_logged_and_other_things_refused_at_the_call(tmp_path: Path) -> None:
    def log(step: Step) -> None:
        step.log(a=np.float32(0.5), b=3, c=True, d=torch.tensor([2], requires_grad=False))
        with pytest.raises(UsageError, match=r"one number for each name, got Tensor of shape \(3,\) for 'v'"):
            step.log(v=torch.ones(3))
        with pytest.raises(UsageError, match=r"got str for 'v'"):
            step.log(v="high")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"step.log\(nonfinite=...\).*another name"):
            step.log(nonfinite=3.0)

    values = _logged(tmp_path, log)
    assert {name: values[name][1] for name in "abcd"} == {"a": 0.5, "b": 3.0, "c": 1.0, "d": 2.0}
    assert not {"v", "nonfinite"} & values.keys()


def test_a_value_on_a_device_is_kept_as_it_was_when_it_was_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What runs on GPUs, tried on the CPU: the value is fetched later.
    monkeypatch.setattr(Step, "_on_cpu", property(lambda _: False, lambda *_: None), raising=False)
    total = torch.zeros(1)

    def log(step: Step) -> None:
        total.add_(1)
        step.log(total=total, other=torch.tensor(5.0))

    assert _logged(tmp_path, log)["total"] == {0: 1.0, 1: 2.0}
