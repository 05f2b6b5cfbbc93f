"""Evaluation: every sample once on any number of processes, one value to the bit."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torchmetrics as tm
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics import classification as tmc
from torchmetrics import regression as tmr

from tests.processes import run_processes
from truestep.errors import UsageError
from truestep.run.data import Loader
from truestep.run.dist import join
from truestep.run.train.evaluate import Conditions, evaluate

SIZES = (2, 3, 5)
CASES = ((5, 50), (8, 50), (5, 3))
"""Lanes and samples. 50 samples in batches of 16 end with a batch of 2, in which most lanes and some
processes have nothing; 3 samples are such a batch alone."""
SHORT = (50, 3, 1)

Forward = Callable[[nn.Module, Any], tuple[Any, ...]]
Found = dict[int, list[dict[str, Any]]]


def dataset(num_samples: int = 50) -> TensorDataset:
    made = torch.Generator().manual_seed(3)
    return TensorDataset(
        torch.randn(num_samples, 6, generator=made), torch.randint(0, 3, (num_samples,), generator=made)
    )


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def classes(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    return model(batch[0]).softmax(1), batch[1]


def values(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    return model(batch[0])[:, 0], batch[1] + 0.1 * batch[0][:, 0]


def numbers(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    return (model(batch[0])[:, 0],)


def groups() -> tm.MetricCollection:
    return tm.MetricCollection(
        {"recall": tmc.MulticlassRecall(3), "curve": tmc.MulticlassAUROC(3, thresholds=None)}, prefix="valid_"
    )


class Plain:
    """No torchmetrics: it counts beside its sum, and draws."""

    def reset(self) -> None:
        self.total, self.num_seen = 0.0, 0

    def update(self, value: torch.Tensor) -> None:
        self.total += value.sum().item() + torch.rand(()).item()
        self.num_seen += len(value)

    def compute(self) -> float:
        return self.total / self.num_seen


METRICS: dict[str, tuple[Callable[[], Any], Forward]] = {
    "accuracy": (lambda: tmc.MulticlassAccuracy(3), classes),
    "cat": (tm.CatMetric, numbers),
    "collection": (groups, classes),
    "mean": (tm.MeanMetric, numbers),
    "pearson": (tmr.PearsonCorrCoef, values),
    "wrapper": (lambda: tm.MinMaxMetric(tmr.MeanSquaredError()), values),
    "plain": (Plain, numbers),
}


def conditions(num_lanes: int, **others: Any) -> Conditions:
    return Conditions(device=torch.device("cpu"), seed=4, num_lanes=num_lanes, **{"world": join(), **others})


def every_metric(num_lanes: int, num_samples: int) -> dict[str, str]:
    """Evaluate all metrics; return their values as text, which has all digits."""
    loader, model, found = Loader(dataset(num_samples), batch_size=16), net(), {}
    for name, (make, forward) in METRICS.items():
        metric = make()
        value = evaluate(model, loader, metric=metric, forward=forward, under=conditions(num_lanes))
        found[name] = json.dumps(value)
    return found


class Rounds(nn.Module):
    """A model whose forward needs all processes, as a sharded one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.num_forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_forwards += 1
        total = torch.ones(())
        if dist.is_initialized():
            dist.all_reduce(total)
        return self.inner(x)


def in_step(num_lanes: int, num_samples: int) -> tuple[Any, int]:
    model, loader = Rounds(), Loader(dataset(num_samples), batch_size=16)
    under = conditions(num_lanes, in_step=True)
    value = evaluate(model, loader, metric=tmc.MulticlassConfusionMatrix(3), forward=None, under=under)
    return value, model.num_forwards


def on_this_size() -> dict[str, Any]:
    """Do everything on as many processes as there are."""
    size = dist.get_world_size()
    return {
        "values": [every_metric(*case) for case in CASES if case[0] >= size],
        "in step": [in_step(5, num_samples) for num_samples in SHORT],
    }


@pytest.fixture(scope="module")
def found() -> Found:
    """What each process of each number of them found."""
    return {size: run_processes(on_this_size, size=size) for size in SIZES}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torchmetrics finds three samples few
@pytest.mark.practice("P73")
def test_the_value_does_not_depend_on_the_number_of_processes(found: Found) -> None:
    """Metrics over an epoch have the same value on any number of processes."""
    alone = {case: every_metric(*case) for case in CASES}
    for size in SIZES:
        expected = [values for case, values in alone.items() if case[0] >= size]
        assert all(set(one) == set(METRICS) for one in expected)
        assert [rank["values"] for rank in found[size]] == [expected] * size, f"{size} processes"


@pytest.mark.parametrize("name", [name for name in METRICS if name != "plain"])
@pytest.mark.parametrize("num_lanes", [1, 5])
def test_the_value_is_the_metrics_own_lane_after_lane(name: str, num_lanes: int) -> None:
    make, forward = METRICS[name]
    value = evaluate(
        net(), Loader(dataset(), batch_size=16), metric=make(), forward=forward, under=conditions(num_lanes)
    )
    expected = make()
    feed = Loader(dataset(), batch_size=16).feed_in_order(seed=4, num_lanes=num_lanes, lanes=range(num_lanes))
    with torch.no_grad():
        for lane in (lane for batch in feed for lane in batch.lanes):
            expected.update(*forward(net(), lane.data))
    assert value == torch.utils._pytree.tree_map(torch.Tensor.tolist, expected.compute())


def test_lanes_are_taken_in_their_order() -> None:
    """The suite can fail: another order gives other bits."""
    digits = set()
    for shift in (0, 7, 23):
        x, y = dataset()[:]
        loader = Loader(TensorDataset(x.roll(shift, 0), y.roll(shift, 0)), batch_size=10)
        digits.add(evaluate(net(), loader, metric=tm.SumMetric(), forward=numbers, under=conditions(5)))
    assert len(digits) > 1


def test_a_sharded_model_runs_equally_often_everywhere(found: Found) -> None:
    for index, num_samples in enumerate(SHORT):
        alone, _ = in_step(5, num_samples)
        assert sum(map(sum, alone)) == num_samples
        for size in SIZES:
            ranks = [rank["in step"][index] for rank in found[size]]
            assert [value for value, _ in ranks] == [alone] * size
            assert len({num_forwards for _, num_forwards in ranks}) == 1


def test_modes_gradients_and_sync_are_as_before() -> None:
    model, metric = nn.Sequential(net(), nn.Dropout(0.5), nn.BatchNorm1d(3).eval()), tmr.MeanSquaredError()
    modes = []

    def forward(model: nn.Module, batch: Any) -> tuple[Any, ...]:
        modes.append(model.training or model[1].training)
        prediction, target = values(model, batch)
        assert not prediction.requires_grad
        assert not metric._to_sync
        return prediction, target

    evaluate(model, Loader(dataset(), batch_size=16), metric=metric, forward=forward, under=conditions(4))
    assert metric._to_sync
    assert not any(modes)
    assert [module.training for module in model] == [True, True, False]


def test_draws_in_forward_are_those_of_the_lane() -> None:
    def noisy(model: nn.Module, batch: Any) -> tuple[Any, ...]:
        return (batch[0][:, 0] + torch.randn(len(batch[0])),)

    found = []
    for start in (1, 2):
        torch.manual_seed(start)
        loader = Loader(dataset(), batch_size=16)
        found.append(evaluate(net(), loader, metric=tm.SumMetric(), forward=noisy, under=conditions(4)))
    assert found[0] == found[1]


def test_a_batch_that_is_no_pair_needs_forward() -> None:
    loader = Loader(torch.randn(8, 6), batch_size=4)
    with pytest.raises(UsageError, match=r"Pass forward=lambda model, batch"):
        evaluate(net(), loader, metric=tm.SumMetric(), forward=None, under=conditions(2))


def test_alone_no_forward_is_added() -> None:
    model = Rounds()
    evaluate(
        model,
        Loader(dataset(), batch_size=16),
        metric=tmc.MulticlassAccuracy(3),
        forward=None,
        under=conditions(5, in_step=True),
    )
    assert model.num_forwards == 3 * 5 + 2
