"""Evaluation: every sample once on any number of processes, one value to the bit."""

import json
from typing import Any

import pytest
import torch
import torchmetrics as tm
from torch import nn
from torchmetrics import classification as tmc
from torchmetrics import regression as tmr

from tests.processes import run_processes
from tests.run.train.lane_metrics import (
    CASES,
    EXACT,
    METRICS,
    REFUSED,
    SHORT,
    SIZES,
    Rounds,
    classes,
    conditions,
    dataset,
    every_metric,
    groups,
    in_step,
    net,
    numbers,
    on_this_size,
    plain,
    refusals,
    values,
)
from truestep.errors import UsageError
from truestep.run.data import Loader
from truestep.run.train.evaluate import evaluate

Found = dict[int, list[dict[str, Any]]]


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


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("num_lanes", [1, 5])
def test_exact_states_give_torchmetrics_own_value(name: str, num_lanes: int) -> None:
    make, forward = EXACT[name]
    # One model call per lane: a linear layer rounds rows otherwise in batches of another size.
    predictions = torch.utils.data.TensorDataset(*forward(net(), dataset()[:]))
    predictions.tensors = tuple(tensor.detach() for tensor in predictions.tensors)
    value = evaluate(
        net(),
        Loader(predictions, batch_size=16),
        metric=make(),
        forward=lambda model, batch: tuple(batch),
        under=conditions(num_lanes),
    )
    assert value == torch.utils._pytree.tree_map(torch.Tensor.tolist, plain(name, 50))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("num_lanes", [1, 5])
def test_the_value_is_torchmetrics_own_but_for_rounding(name: str, num_lanes: int) -> None:
    make, forward = METRICS[name]
    value = evaluate(
        net(), Loader(dataset(), batch_size=16), metric=make(), forward=forward, under=conditions(num_lanes)
    )
    expected = plain(name, 50)
    if name == "mean of batches":  # one update over all samples weighs them otherwise
        metric = make()
        for batch in (lane for step in _lanes(num_lanes) for lane in step):
            metric.update(*forward(net(), batch))
        expected = metric.compute().detach()
    for key in expected if isinstance(expected, dict) else [None]:
        ours, theirs = (value, expected) if key is None else (value[key], expected[key])
        # Sums of float32 taken in another order, over 50 values: a few units in the last place.
        torch.testing.assert_close(torch.tensor(ours), theirs, rtol=2e-5, atol=1e-6)


def _lanes(num_lanes: int) -> list[list[Any]]:
    feed = Loader(dataset(), batch_size=16).feed_in_order(seed=4, num_lanes=num_lanes, lanes=range(num_lanes))
    return [[lane.data for lane in batch.lanes] for batch in feed]


def test_lanes_are_folded_in_their_order() -> None:
    """The suite can fail: another order gives other bits."""
    digits = set()
    for shift in (0, 7, 23):
        x, y = dataset()[:]
        rolled = torch.utils.data.TensorDataset(x.roll(shift, 0), y.roll(shift, 0))
        metric = tm.SumMetric()
        digits.add(
            evaluate(
                net(), Loader(rolled, batch_size=10), metric=metric, forward=numbers, under=conditions(5)
            )
        )
    assert len(digits) > 1


def test_a_sharded_model_runs_equally_often_everywhere(found: Found) -> None:
    for index, num_samples in enumerate(SHORT):
        alone, _ = in_step(5, num_samples)
        assert sum(map(sum, alone)) == num_samples
        for size in SIZES:
            ranks = [rank["in step"][index] for rank in found[size]]
            assert [value for value, _ in ranks] == [alone] * size
            assert len({num_forwards for _, num_forwards in ranks}) == 1


def test_what_cannot_be_folded_is_refused_on_several_processes(found: Found) -> None:
    for size in (2, 3, 4):
        for rank in found[size]:
            for refused in rank["refusals"]:
                for message in REFUSED:
                    assert f"cannot be computed on {size} processes: {message}" in refused[message]
                    assert "or evaluate on one process" in refused[message]


def test_what_cannot_be_folded_is_updated_lane_after_lane_on_one_process() -> None:
    assert refusals() == {}
    for make, forward in REFUSED.values():
        metric, expected = make(), make()
        for one in (metric, expected):
            if hasattr(one, "increment"):
                one.increment()
        value = evaluate(
            net(), Loader(dataset(), batch_size=16), metric=metric, forward=forward, under=conditions(4)
        )
        expected.reset()
        with torch.no_grad():
            for lane in (lane for step in _lanes(4) for lane in step):
                expected.update(*forward(net(), lane))
        assert json.dumps(value) == json.dumps(
            torch.utils._pytree.tree_map(
                lambda item: item.tolist() if isinstance(item, torch.Tensor) else item, expected.compute()
            )
        )


def test_a_collection_is_not_misled_by_states_that_are_equal_by_chance() -> None:
    """Of one class only, top-1 and top-2 have equal states; torchmetrics would take them for one group."""
    x, y = dataset()[:]
    order = (net()(x).argmax(1) != y).int().argsort(stable=True)
    sorted_by_hit = torch.utils.data.TensorDataset(x[order], y[order])
    collection = tm.MetricCollection(
        {"one": tmc.MulticlassAccuracy(3, top_k=1), "two": tmc.MulticlassAccuracy(3, top_k=2)}
    )
    single = {}
    for name, metric in (("one", tmc.MulticlassAccuracy(3)), ("two", tmc.MulticlassAccuracy(3, top_k=2))):
        metric.update(net()(x), y)
        single[name] = metric.compute().item()
    assert single["one"] != single["two"]
    for _ in range(2):  # also when the collection comes with groups of its own
        loader = Loader(sorted_by_hit, batch_size=4)
        assert evaluate(net(), loader, metric=collection, forward=None, under=conditions(4)) == single
        collection.reset()
        collection.update(net()(x[order][:4]), y[order][:4])


def test_a_collection_can_be_used_before_and_after() -> None:
    loader, collection = Loader(dataset(), batch_size=16), groups()
    first = evaluate(net(), loader, metric=collection, forward=classes, under=conditions(4))
    assert evaluate(net(), loader, metric=collection, forward=classes, under=conditions(4)) == first
    collection.reset()
    expected = groups()
    for one in (collection, expected):
        for lane in _lanes(2)[0]:
            one.update(*classes(net(), lane))
    assert {key: value.item() for key, value in collection.compute().items()} == {
        key: value.item() for key, value in expected.compute().items()
    }


def test_modes_gradients_and_sync_are_as_before() -> None:
    model, metric = nn.Sequential(net(), nn.Dropout(0.5), nn.BatchNorm1d(3).eval()), tmr.MeanSquaredError()
    modes = []

    def forward(model: nn.Module, batch: Any) -> tuple[Any, ...]:
        modes.append(model.training or model[1].training)
        prediction, target = values(model, batch)
        assert not prediction.requires_grad
        assert not metric._to_sync
        return prediction, target

    for num_lanes in (1, 4):
        evaluate(
            model,
            Loader(dataset(), batch_size=16),
            metric=metric,
            forward=forward,
            under=conditions(num_lanes),
        )
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
