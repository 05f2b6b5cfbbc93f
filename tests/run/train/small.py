"""A small training script that the tests in this folder vary."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, AdamW
from torch.utils.data import TensorDataset

import truestep as ts


def data(num_samples: int = 50) -> TensorDataset:
    made = torch.Generator().manual_seed(3)
    return TensorDataset(
        torch.randn(num_samples, 6, generator=made), torch.randint(0, 3, (num_samples,), generator=made)
    )


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def tracked(run: ts.Run, model: nn.Module | None = None, **options: Any) -> tuple[nn.Module, SGD]:
    """Place a model, track it with an optimizer, and return both."""
    model = run.place(model or net(), **options)
    optimizer = SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    return model, optimizer


def train_on(  # limits: a run, and what it trains
    run: ts.Run,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    loader: ts.Loader | None = None,
    stop_at: int | None = None,
    **length: int,
) -> None:
    """Train for some steps or epochs; fail before step `stop_at`."""
    for step in run.steps(loader or ts.Loader(data(), batch_size=16), **length):
        if step.index == stop_at:
            raise InterruptedError
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
        step.update(optimizer)


def train(
    folder: Path,
    *,
    num_steps: int = 20,
    stop_at: int | None = None,
    leave_at: int | None = None,
    on_step: Callable[[int], object] = lambda index: None,
    num_samples: int = 50,
    batch_size: int = 16,
    model: nn.Module | None = None,
    fused: bool | None = None,
    **options: Any,
) -> str:
    """Train `num_steps` steps, fail before step `stop_at`, break after step `leave_at`; return the digest."""
    options = {"seed": 1, "lanes": 2, "progress": False, "snapshots": ts.Snapshots(every_steps=5), **options}
    with contextlib.suppress(InterruptedError), ts.Run(folder, **options) as run:
        model = run.place(model or net())
        optimizer = AdamW(model.parameters(), lr=1e-2, fused=fused)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(data(num_samples), batch_size=batch_size), steps=num_steps):
            on_step(step.index)
            if step.index == stop_at:
                raise InterruptedError
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer, clip_norm=1.0)
            if step.index == leave_at:
                break
        return ts.digest_state({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    return ""
