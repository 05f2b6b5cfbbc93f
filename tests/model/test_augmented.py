"""Test-time augmentation on real digits, and the interval for what it gains."""

import random

import numpy
import pytest
import torch
from torch import Tensor, nn

from tests.model.digits import cnn, held_out
from tests.zoo import bert
from truestep.errors import UsageError
from truestep.model import augmented, measure_gain
from truestep.model.scoring import Paired


def same(x: Tensor) -> Tensor:
    return x


def shift(rows: int, columns: int):
    return lambda x: torch.roll(x, (rows, columns), (-2, -1))


SHIFTS = [same, shift(0, 1), shift(0, -1)]


@pytest.mark.practice("P34")
def test_p34_a_gain_is_measured_with_an_interval() -> None:
    """Accuracy with and without augmentation is reported for the same samples, with an interval."""
    model = cnn()
    gain = measure_gain(model, held_out(), transforms=SHIFTS)
    right = [0, 0]
    model.eval()
    with torch.no_grad():
        for images, targets in held_out():
            outputs = [model(change(images)).softmax(-1) for change in SHIFTS]
            right[0] += int((model(images).argmax(1) == targets).sum())
            right[1] += int((sum(outputs).argmax(1) == targets).sum())
    assert gain.paired.num_right == tuple(right) and gain.paired.num_samples == 797
    assert gain.gain == pytest.approx((right[1] - right[0]) / 797, abs=1e-12)  # one division against two
    low, high = gain.interval
    assert low < gain.gain < high and high - low < 0.05
    assert "797 right" in str(gain) and "3 passes instead of 1" in str(gain)


@pytest.mark.practice("P34")
def test_p34_the_identity_gains_exactly_nothing() -> None:
    """Averaging over unchanged inputs gives a gain of exactly 0, with an interval around it."""
    gain = measure_gain(cnn(), held_out(), transforms=[same, same])
    low, high = gain.interval
    assert gain.gain == 0.0 and gain.paired.fixed == gain.paired.broken == 0
    assert low == pytest.approx(-high) and 0 < high < 0.01
    assert "no gain is shown" in str(gain)


@pytest.mark.practice("P34")
def test_p34_a_transform_that_changes_the_class_is_told_to_lose() -> None:
    """Flipping digits changes their class: averaging over flips loses, and the interval shows it."""
    gain = measure_gain(cnn(), held_out(), transforms=[same, lambda x: x.flip(-1), lambda x: x.flip(-2)])
    assert gain.interval[1] < 0 and gain.paired.p_value < 1e-6
    assert "a loss" in str(gain)


@pytest.mark.practice("P34")
def test_p34_the_copied_recipe_mixes_samples() -> None:
    """Stacking the changed batches and viewing them as [batch, crops] averages over different samples."""
    model = cnn().eval()
    images, _ = held_out(8)[0]
    data = torch.stack(
        [change(images) for change in SHIFTS]
    )  # [crops, batch, ...]: not what the recipe reads
    crops, size = data.shape[:2]
    with torch.no_grad():
        output = model(data.view(-1, 1, 8, 8))
        recipe = output.view(size, crops, -1).mean(1)
        right = output.view(crops, size, -1).mean(0)
    ours = augmented(model, SHIFTS, average="logits")(images)
    # One pass over all crops sums in another order than one pass for each.
    torch.testing.assert_close(ours, right)
    assert (recipe.argmax(1) != ours.argmax(1)).any()


def test_one_transform_gives_the_bits_of_the_model() -> None:
    model = cnn()
    images, _ = held_out()[0]
    found = augmented(model, [same], average="logits")(images)
    assert torch.equal(found, model.eval()(images)) and not found.requires_grad
    probabilities = augmented(model, [same])(images)
    assert torch.equal(probabilities, model(images).softmax(-1))


def test_a_transformer_is_augmented_through_its_mapping() -> None:
    model, batch = bert()
    batch = {**batch, "labels": batch["labels"]}

    def backwards(inputs):
        return {**inputs, "input_ids": inputs["input_ids"].flip(1)}

    gain = measure_gain(model, [batch], transforms=[same, backwards])
    assert gain.paired.num_samples == 4 and gain.num_passes == 2
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    assert augmented(model, [same, backwards])(inputs).shape == (4, 3)


def test_nothing_global_is_touched() -> None:
    model = cnn()
    model[1].eval()
    images, targets = held_out()[0]
    dataset = torch.utils.data.TensorDataset(images, targets)
    loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True)
    kept = model[1].running_mean, model[1].running_mean._version
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()

    def noisy(x: Tensor) -> Tensor:
        return x + random.random() + float(numpy.random.rand()) + torch.rand(1)

    measure_gain(model, loader, transforms=[noisy])
    with pytest.raises(RuntimeError):
        augmented(model, [lambda x: x[:, :, :1]])(images)
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert (states[2] == numpy.random.get_state()[1]).all()
    assert [module.training for module in model] == [True, False, True, True, True, True]
    assert (model[1].running_mean, model[1].running_mean._version) == kept
    assert torch.is_grad_enabled()


def paired(fixed: int, broken: int, total: int) -> Paired:
    return Paired(
        num_samples=total, num_right=(total // 2, total // 2), fixed=fixed, broken=broken, confidence=0.95
    )


def test_the_interval_is_that_of_the_paper() -> None:
    # The worked example of Tango 1998: 44 pairs, one of them apart.
    assert paired(0, 1, 44).interval == pytest.approx((-0.1181, 0.0584), abs=1e-3)
    low, high = paired(11, 1, 50).interval
    assert (low, high) == pytest.approx(tuple(-end for end in reversed(paired(1, 11, 50).interval)))
    assert low < 0.2 < high


@pytest.mark.parametrize(("up", "down"), [(0.02, 0.02), (0.05, 0.01), (0.10, 0.08)])
def test_the_interval_covers_as_often_as_it_says(up: float, down: float) -> None:
    draws = numpy.random.default_rng(0).multinomial(200, [up, down, 1 - up - down], size=2000)
    covered = 0
    for fixed, broken, _ in draws.tolist():
        low, high = paired(fixed, broken, 200).interval
        covered += low <= up - down <= high
    assert 0.93 <= covered / 2000 <= 0.975  # 95 %, and four standard errors of 0.5 % downwards


def test_the_p_value_is_that_of_a_fair_coin() -> None:
    assert paired(0, 0, 10).p_value == 1.0
    assert paired(8, 1, 20).p_value == pytest.approx(2 * (1 + 9) / 2**9)
    assert paired(40_000, 41_000, 100_000).p_value == pytest.approx(4.45e-4, rel=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transforms": []}, "must be functions of a batch, at least one"),
        ({"transforms": [same], "average": "votes"}, "average is 'votes'"),
        ({"transforms": [same], "confidence": 95}, "confidence is 95, and must be between 0 and 1"),
        ({"transforms": [same, lambda x: x[:3]]}, "keep the number and order of the samples"),
    ],
)
def test_what_cannot_be_measured_is_told(change: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        measure_gain(cnn(), held_out(), **change)


def test_batches_of_other_forms_are_told() -> None:
    model = cnn()
    images, targets = held_out()[0]
    with pytest.raises(UsageError, match=r"a batch must be \(inputs, targets\).* got Tensor"):
        measure_gain(model, [images], transforms=[same])
    with pytest.raises(UsageError, match="there were no batches"):
        measure_gain(model, [], transforms=[same])
    with pytest.raises(UsageError, match="accuracy needs scores of shape"):
        measure_gain(model, [(images, targets[:, None])], transforms=[same])

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            return [x, x]

    with pytest.raises(UsageError, match="returned list, neither a tensor nor an object with `logits`"):
        measure_gain(Twice(), [(images, targets)], transforms=[same])
