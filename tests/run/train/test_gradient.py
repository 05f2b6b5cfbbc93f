"""The gradient of lanes is the gradient of the whole batch."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

import truestep as ts
from tests.run.train.small import tracked
from truestep.errors import UsageError

NUM_SAMPLES, BATCH = 23, 16  # the second batch has 7 samples: uneven, and fewer than 8 lanes


@pytest.fixture(autouse=True)
def _float64() -> None:
    torch.set_default_dtype(torch.float64)


def _samples() -> list[tuple[torch.Tensor, int]]:
    made = torch.Generator().manual_seed(0)
    return [(torch.randn(5, generator=made), index % 3) for index in range(NUM_SAMPLES)]


@pytest.mark.parametrize("lanes", [1, 2, 4, 7, 8])
@pytest.mark.practice("P48")
def test_gradient_is_that_of_the_whole_batch(tmp_path: Path, lanes: int) -> None:
    """Gradients accumulated over any number of lanes are those of the whole batch, also of an uneven one."""
    with ts.Run(tmp_path, seed=1, lanes=lanes, progress=False) as run:
        model = run.place(nn.Linear(5, 3))
        optimizer = SGD(model.parameters(), lr=0.0)
        run.track(model=model, optimizer=optimizer)
        sizes = []
        for step in run.steps(ts.Loader(_samples(), batch_size=BATCH), epochs=2):
            seen: list[tuple[torch.Tensor, torch.Tensor]] = []
            for x, y in step:
                seen.append((x, y))
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer)
            whole = F.cross_entropy(model(torch.cat([x for x, _ in seen])), torch.cat([y for _, y in seen]))
            expected = torch.autograd.grad(whole, list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), expected, strict=True):
                assert parameter.grad is not None
                # Tolerance: summing lanes first is another order of the same sum.
                assert (parameter.grad - gradient).abs().max() < 1e-12
            sizes.append(sum(len(y) for _, y in seen))
        assert sizes == [16, 7, 16, 7]


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.practice("P43")
@pytest.mark.practice("P47")
def test_padded_tokens_count_once_and_padding_never(tmp_path: Path, lanes: int, as_tensor: bool) -> None:
    """Every token counts once in a loss over padded lanes, and padding never."""
    made = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(1, 9, (int(torch.randint(1, 9, (), generator=made)),), generator=made)
        for _ in range(NUM_SAMPLES)
    ]
    with ts.Run(tmp_path, seed=1, lanes=lanes, progress=False) as run:
        model = run.place(nn.Embedding(9, 9))
        optimizer = SGD(model.parameters(), lr=0.0)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(rows, batch_size=BATCH, collate=ts.pad_collate()), epochs=1):
            tokens: list[torch.Tensor] = []
            for batch in step:
                valid = batch.values[batch.mask]
                tokens.append(valid)
                weight = batch.mask.sum() if as_tensor else len(valid)
                step.backward(F.cross_entropy(model(valid), valid), weight=weight)
            step.update(optimizer)
            whole = F.cross_entropy(model(torch.cat(tokens)), torch.cat(tokens))
            (expected,) = torch.autograd.grad(whole, [model.weight])
            assert (model.weight.grad - expected).abs().max() < 1e-12  # type: ignore[operator]


def _one_step(tmp_path: Path) -> tuple[ts.Run, nn.Module, SGD]:
    run = ts.Run(tmp_path, seed=1, progress=False)
    model, optimizer = tracked(run, nn.Linear(5, 3))
    return run, model, optimizer


def test_two_losses_of_a_lane_add_up(tmp_path: Path) -> None:
    run, model, optimizer = _one_step(tmp_path)
    with run:
        step = next(iter(run.steps(ts.Loader(_samples(), batch_size=BATCH), steps=1)))
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
            step.backward(model(x).square().mean())
            expected = torch.autograd.grad(
                F.cross_entropy(model(x), y) + model(x).square().mean(), [model.weight]
            )
        step.update(optimizer)
        assert (model.weight.grad - expected[0]).abs().max() < 1e-12


def test_mistakes_are_named_with_what_to_do(tmp_path: Path) -> None:
    run, model, optimizer = _one_step(tmp_path)
    with run:
        stranger = SGD(model.parameters(), lr=0.1)
        step = next(iter(run.steps(ts.Loader(_samples(), batch_size=BATCH), steps=1)))
        with pytest.raises(UsageError, match="comes after `for batch in step"):
            step.update(optimizer)
        with pytest.raises(UsageError, match="belongs inside"):
            step.backward(model(torch.zeros(1, 5)).sum())
        for x, y in step:
            with pytest.raises(UsageError, match=r"Was .item\(\) called"):
                step.backward(F.cross_entropy(model(x), y).item())  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="does not depend on any parameter"):
                step.backward(F.cross_entropy(model(x), y).detach())
            with pytest.raises(UsageError, match=r"shape \(16, 3\). Take its mean"):
                step.backward(model(x))
            step.backward(F.cross_entropy(model(x), y))
            with pytest.raises(UsageError, match="must have one weight, got 16 and 3"):
                step.backward(F.cross_entropy(model(x), y), weight=3)
        with pytest.raises(UsageError, match=r"not tracked .*run.track\(optimizer=optimizer\)"):
            step.update(stranger)


def test_a_step_without_update_is_noticed(tmp_path: Path) -> None:
    run, model, _ = _one_step(tmp_path)
    with run:
        steps = iter(run.steps(ts.Loader(_samples(), batch_size=BATCH), steps=2))
        step = next(steps)
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
        with pytest.raises(UsageError, match=r"step 1 ended without step\.update"):
            next(steps)


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_parameter_group_may_be_added_between_steps_and_not_inside_one(tmp_path: Path, lanes: int) -> None:
    with ts.Run(tmp_path, seed=1, lanes=lanes, progress=False) as run:
        model = run.place(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)))
        optimizer = SGD(model[1].parameters(), lr=0.1)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(_samples(), batch_size=BATCH), steps=4):
            if step.index == 2:
                optimizer.add_param_group({"params": model[0].parameters()})
            batch = []
            for x, y in step:
                batch.append((x, y))
                step.backward(F.cross_entropy(model(x), y))
            whole = F.cross_entropy(model(torch.cat([x for x, _ in batch])), torch.cat([y for _, y in batch]))
            (expected,) = torch.autograd.grad(whole, [model[0].weight])
            if step.index == 3:
                optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
                with pytest.raises(UsageError, match=r"added to optimizer inside a step.* between steps"):
                    step.update(optimizer)
                break
            step.update(optimizer)
            if step.index == 2:
                # Tolerance: as above. The gradients of steps before would make it three times as large.
                assert (model[0].weight.grad - expected).abs().max() < 1e-12


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_batch_without_any_weight_is_refused(tmp_path: Path, lanes: int) -> None:
    with ts.Run(tmp_path, seed=1, lanes=lanes, progress=False) as run:
        model, optimizer = tracked(run, nn.Linear(5, 3))
        step = next(iter(run.steps(ts.Loader(_samples(), batch_size=BATCH), steps=1)))
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y), weight=0)
        with pytest.raises(UsageError, match=r"all lanes of step 1 have weight 0.*give them weight=1"):
            step.update(optimizer)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_rows_norm_does_not_depend_on_how_many_are_computed(threads: int) -> None:
    torch.set_num_threads(threads)  # clipping sharded gradients rests on this
    for width in (1, 3, 8, 17, 100, 1000, 4097, 70_000):
        rows = torch.randn(12, width) * torch.logspace(-6, 6, 12)[:, None]
        for dtype in (None, torch.float64):
            whole = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
            for first, last in ((0, 1), (3, 5), (5, 12), (11, 12)):
                part = torch.linalg.vector_norm(rows[first:last].clone(), dim=1, dtype=dtype)
                assert torch.equal(part, whole[first:last]), (width, first, last)
