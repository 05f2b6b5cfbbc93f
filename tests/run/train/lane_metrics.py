"""Metrics over a small dataset, evaluated in this process or several."""

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torchmetrics as tm
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics import classification as tmc
from torchmetrics import image as tmi
from torchmetrics import regression as tmr
from torchmetrics import text as tmt

from truestep.errors import UsageError
from truestep.run.data import Loader
from truestep.run.dist import join
from truestep.run.train import evaluate as evaluating
from truestep.run.train.evaluate import Conditions, evaluate

Forward = Callable[[nn.Module, Any], tuple[Any, ...]]


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


def pairs(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    return model(batch[0])[:, :2], batch[0][:, :2]


def numbers(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    return (model(batch[0])[:, 0],)


def tokens(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    return model(batch[0]).unsqueeze(1), batch[1].unsqueeze(1)


def columns(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    return model(batch[0]).unsqueeze(2), batch[1].unsqueeze(1)


def pictures(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    return model(batch[0]).reshape(-1, 1, 1, 3), batch[0][:, :3].reshape(-1, 1, 1, 3)


def groups() -> tm.MetricCollection:
    return tm.MetricCollection(
        {
            "recall": tmc.MulticlassRecall(3),
            "precision": tmc.MulticlassPrecision(3),
            "curve": tmc.MulticlassAUROC(3, thresholds=None),
            "area": tmc.MulticlassAveragePrecision(3, thresholds=None),
        },
        prefix="valid_",
    )


class MeanOfBatches(tm.Metric):
    """A state that is averaged: the mean over updates of each update's mean."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.zeros(()), dist_reduce_fx="mean")

    def update(self, value: torch.Tensor) -> None:
        self.mean = (self.mean * (self._update_count - 1) + value.mean()) / self._update_count

    def compute(self) -> torch.Tensor:
        return self.mean


class Largest(tm.Metric):
    """A reduction of its own."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        least = torch.full((2,), -torch.inf)
        self.add_state("top", least, dist_reduce_fx=lambda stack: stack.flatten().topk(2).values)

    def update(self, value: torch.Tensor) -> None:
        self.top = torch.cat([self.top, value]).topk(2).values

    def compute(self) -> torch.Tensor:
        return self.top


EXACT: dict[str, tuple[Callable[[], Any], Forward]] = {
    "accuracy, macro": (lambda: tmc.MulticlassAccuracy(3), classes),
    "accuracy, micro": (lambda: tmc.MulticlassAccuracy(3, average="micro"), classes),
    "confusion": (lambda: tmc.MulticlassConfusionMatrix(3), classes),
    "f1": (lambda: tmc.MulticlassF1Score(3), classes),
    "maximum": (tm.MaxMetric, numbers),
    "minimum": (tm.MinMetric, numbers),
    "largest": (Largest, numbers),
    "cat": (tm.CatMetric, numbers),
    "auroc, exact": (lambda: tmc.MulticlassAUROC(3, thresholds=None), classes),
    "auroc, binned": (lambda: tmc.MulticlassAUROC(3, thresholds=20), classes),
    "samplewise": (lambda: tmc.MulticlassAccuracy(3, multidim_average="samplewise"), columns),
    "collection": (groups, classes),
}
"""States that are integers, extremes or the samples themselves: no sum of floats is rounded."""

ROUNDED: dict[str, tuple[Callable[[], Any], Forward]] = {
    "mean": (tm.MeanMetric, numbers),
    "sum": (tm.SumMetric, numbers),
    "squared error": (tmr.MeanSquaredError, values),
    "squared errors": (lambda: tmr.MeanSquaredError(num_outputs=2), pairs),
    "r2": (tmr.R2Score, values),
    "pearson": (tmr.PearsonCorrCoef, values),
    "pearsons": (lambda: tmr.PearsonCorrCoef(num_outputs=2), pairs),
    "concordance": (tmr.ConcordanceCorrCoef, values),
    "perplexity": (tmt.Perplexity, tokens),
    "psnr": (lambda: tmi.PeakSignalNoiseRatio(data_range=3.3), pictures),
    "psnr, range seen": (lambda: tmi.PeakSignalNoiseRatio(data_range=(0.0, 1.1)), pictures),
    "calibration": (lambda: tmc.MulticlassCalibrationError(3), classes),
}

METRICS = EXACT | ROUNDED | {"mean of batches": (MeanOfBatches, numbers)}


def conditions(num_lanes: int, **others: Any) -> Conditions:
    return Conditions(device=torch.device("cpu"), seed=4, num_lanes=num_lanes, **{"world": join(), **others})


def every_metric(num_lanes: int, num_samples: int) -> dict[str, str]:
    """Evaluate all metrics; return their values as text, which has all digits."""
    loader, model, found = Loader(dataset(num_samples), batch_size=16), net(), {}
    for name, (make, forward) in METRICS.items():
        metric = make()
        value = evaluate(model, loader, metric=metric, forward=forward, under=conditions(num_lanes))
        # Left with the whole state, and without another exchange between processes.
        again = metric.compute()
        found[name] = json.dumps([value, torch.utils._pytree.tree_map(torch.Tensor.tolist, again)])
    return found


def plain(name: str, num_samples: int) -> Any:
    """Return what torchmetrics itself computes from all samples in one update."""
    make, forward = METRICS[name]
    metric = make()
    with torch.no_grad():
        metric.update(*forward(net(), dataset(num_samples)[:]))
    return metric.compute()


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


class Hiding(tm.Metric):
    """Counts beside its states."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.num_seen = 0

    def update(self, value: torch.Tensor) -> None:
        self.total += value.sum()
        self.num_seen += len(value)

    def compute(self) -> torch.Tensor:
        return self.total / self.num_seen


class Unreduced(tm.Metric):
    """Forgot to say how its state is combined."""

    full_state_update = False

    def __init__(self, **state: Any) -> None:
        super().__init__()
        self.add_state("total", **({"default": torch.zeros(())} | state))

    def update(self, value: torch.Tensor) -> None:
        self.total = self.total + value.sum()

    def compute(self) -> torch.Tensor:
        return self.total


class Bare:
    """Neither Metric nor collection."""

    def reset(self) -> None:
        self.total = 0.0

    def update(self, value: torch.Tensor) -> None:
        self.total += value.sum().item()

    def compute(self) -> float:
        return self.total


REFUSED: dict[str, tuple[Callable[[], Any], Forward]] = {
    "Bare is not a torchmetrics Metric or MetricCollection": (Bare, numbers),
    "MinMaxMetric wraps other metrics": (lambda: tm.MinMaxMetric(tmr.MeanSquaredError()), values),
    "ClasswiseWrapper wraps": (lambda: tm.ClasswiseWrapper(tmc.MulticlassRecall(3, average=None)), classes),
    "MetricTracker is not a": (lambda: tm.MetricTracker(tmr.MeanSquaredError()), values),
    "the state 'total' of Unreduced has dist_reduce_fx=None": (Unreduced, numbers),
    "the state 'total' of Unreduced is summed and does not begin at zero": (
        lambda: Unreduced(default=torch.ones(()), dist_reduce_fx="sum"),
        numbers,
    ),
    "the state 'total' of mine has dist_reduce_fx=None": (
        lambda: tm.MetricCollection({"mine": Unreduced(), "other": tm.SumMetric()}),
        numbers,
    ),
    "update of Hiding writes 'num_seen'": (Hiding, numbers),
}


def refusals(num_samples: int = 50) -> dict[str, str]:
    found = {}
    for name, (make, forward) in REFUSED.items():
        metric = make()
        if hasattr(metric, "increment"):
            metric.increment()
        loader = Loader(dataset(num_samples), batch_size=16)
        try:
            evaluate(net(), loader, metric=metric, forward=forward, under=conditions(4))
        except UsageError as error:
            found[name] = str(error)
    return found


SIZES = (2, 3, 4, 5)
CASES = ((4, 50), (5, 50), (8, 50), (5, 3))
"""Lanes and samples. 50 samples in batches of 16 end with a batch of 2, in which most lanes and some
processes have nothing; 3 samples are such a batch alone."""
SHORT = (50, 3, 1)


def on_this_size() -> dict[str, Any]:
    """Do everything on as many processes as there are."""
    size = dist.get_world_size()
    evaluating._BATCHES_PER_MESSAGE = size - 1  # the value must not depend on that either
    return {
        "values": [every_metric(*case) for case in CASES if case[0] >= size],
        "in step": [in_step(5, num_samples) for num_samples in SHORT],
        # Of one sample, most processes have none, and must hear of it from the others.
        "refusals": [refusals(num_samples) for num_samples in (50, 1)] if size < 5 else [],
    }
