"""Backward passes that somebody wrote, against finite differences."""

import random
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import truestep as ts
from truestep.errors import UsageError


class Scaled(torch.autograd.Function):
    """x**3 * y for a matrix and a row, with a backward that a subclass gets wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x**3 * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return gradient * 3 * x**2 * y, (gradient * x**3).sum(0)


class WrongFactor(Scaled):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return gradient * 3 * x * y, (gradient * x**3).sum(0)


class WrongElement(Scaled):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        for_x, for_y = Scaled.backward(ctx, gradient)
        for_y[1] *= 1.001
        return for_x, for_y


class Forgotten(Scaled):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return Scaled.backward(ctx, gradient)[0], None


class NotScaledByIncoming(Scaled):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return Scaled.backward(ctx, torch.ones_like(gradient))


class InSingle(Scaled):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return Scaled.forward(ctx, x.float(), y.float())


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient


def given() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 3), torch.randn(3)


@pytest.mark.practice("P21")
def test_p21_a_backward_that_does_not_belong_to_its_forward_is_told_with_input_and_element() -> None:
    """`check_backward` compares a custom backward with finite differences and names the input that is off."""
    assert str(ts.model.check_backward(Scaled.apply, given())) == "input 0: right\ninput 1: right"
    found = ts.model.check_backward(WrongElement.apply, given())
    assert [each.is_right for each in found.inputs] == [True, False] and not found.is_right
    assert found.inputs[1].element == (1,)
    assert found.inputs[1].given == pytest.approx(1.001 * found.inputs[1].expected, rel=1e-8)


@pytest.mark.parametrize(
    ("function", "right"),
    [
        (WrongFactor, [False, True]),
        (Forgotten, [True, False]),
        (NotScaledByIncoming, [False, False]),
        (InSingle, [True, True]),
    ],
)
def test_each_input_is_judged_by_itself(function: type[Scaled], right: list[bool]) -> None:
    found = ts.model.check_backward(function.apply, given())
    assert [each.is_right for each in found.inputs] == right


def test_a_missing_gradient_is_told() -> None:
    told = str(ts.model.check_backward(Forgotten.apply, given()))
    assert "input 1: wrong at [" in told and "backward gives no gradient, differences " in told


def test_a_backward_that_differs_on_purpose_differs() -> None:
    assert not ts.model.check_backward(StraightThrough.apply, torch.tensor([0.3, 0.8])).is_right


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: torch.nn.functional.dropout(x.exp()), torch.linspace(-2, 2, 500)),
        (
            lambda x, index: {"picked": x.sigmoid()[index], "sums": [x.sum(0), 3]},
            (torch.randn(5, 4), torch.tensor([1, 2])),
        ),
        (lambda x: x.t().tanh() * 1e-6, torch.randn(3, 4).t()),
        (lambda x: x.log().sum(), torch.rand(6) + 1e3),
        (torch.log, torch.tensor([1e-4, 1.0, 1e4])),
        (torch.relu, torch.tensor([-1.0, 2.0])),
    ],
)
def test_torchs_own_functions_are_right_and_nothing_is_touched(function: Any, inputs: Any) -> None:
    state, before = torch.get_rng_state(), ts.digest_state(inputs)
    assert ts.model.check_backward(function, inputs).is_right
    assert torch.equal(torch.get_rng_state(), state) and ts.digest_state(inputs) == before


def test_a_function_that_draws_from_numpy_or_random_gets_the_same_numbers_each_time() -> None:
    def noisy(x: Tensor) -> Tensor:
        return x.exp() * numpy.random.rand() * random.random()

    states = random.getstate(), numpy.random.get_state()[2]
    assert ts.model.check_backward(noisy, torch.linspace(-1, 1, 5)).is_right
    assert (random.getstate(), numpy.random.get_state()[2]) == states


def test_what_has_no_gradient_is_told() -> None:
    with pytest.raises(UsageError, match="no input is a floating tensor"):
        ts.model.check_backward(torch.neg, torch.tensor([1]))
    with pytest.raises(UsageError, match="computed outside autograd"):
        ts.model.check_backward(lambda x: x.detach() * 2, torch.ones(2))
    with pytest.raises(UsageError, match="returned no floating tensor"):
        ts.model.check_backward(lambda x: x > 0, torch.ones(2))
