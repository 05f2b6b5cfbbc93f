"""State that one lane leaves to the next is refused by name; what only looks like it passes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim import SGD

import truestep as ts
from tests.processes import run_processes
from tests.run.train import small
from tests.run.train.lane_norms import lane_data
from truestep.errors import UsageError
from truestep.run.train.carried import CarriedState


class Net(nn.Module):
    """Carries state in one of several ways, or only seems to."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.num_calls = kind, 0
        self.linear = nn.Linear(6, 3)
        self.code: torch.Tensor
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.register_buffer("code", torch.zeros(3))
        self.scale, self.mean, self.state, self.count = (
            1.0,
            torch.zeros(3),
            (torch.zeros(3),),
            torch.tensor(0),
        )
        self.cache = torch.zeros(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.linear(x)
        self.num_calls += 1
        now = h.detach().mean(0)
        if self.kind == "float":
            self.scale = 0.9 * self.scale + float(now.abs().sum())
        elif self.kind == "tensor":
            self.mean = self.mean + now
        elif self.kind == "tensor in place":
            self.mean += now
        elif self.kind == "tuple":
            (former,) = self.state
            self.state = (former + now,)
        elif self.kind == "parameter":
            self.frozen.data.add_(now)
        elif self.kind == "late data" and self.num_calls > 6:
            self.code.data.add_(now)
        elif self.kind == "seeming":
            self.scale, self.mean, self.state = float(now[0]), h, (h,)
            self.count += 1
            if len(self.cache) < len(x) + self.num_calls:
                self.cache = torch.arange(len(x) + self.num_calls) / 2
            return h + self.mean * 0 + self.scale + self.cache[0]
        return h


def run_lanes(model: Net, *, num_lanes: int, between: Any = lambda _: None) -> None:
    carried = CarriedState({"model": model, "optimizer": SGD(model.linear.parameters(), lr=0.1)})
    for _ in range(num_lanes):
        between(model)
        carried.begin()
        try:
            model(torch.rand(4, 6))
        finally:
            carried.check()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("float", "attribute scale of Net"),
        ("tensor", "attribute mean of Net"),
        ("tensor in place", "attribute mean of Net"),
        ("tuple", "attribute state of Net"),
        ("parameter", "parameter frozen of Net, which no tracked optimizer updates"),
        ("late data", "buffer code of Net"),
    ],
)
def test_state_that_forward_carries_is_named(kind: str, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        run_lanes(Net(kind), num_lanes=8)
    assert "__getattribute__" not in vars(nn.Module)


@pytest.mark.parametrize("kind", ["", "seeming"])
def test_counters_caches_and_what_each_lane_sets_first_pass(kind: str) -> None:
    run_lanes(Net(kind), num_lanes=9)


def test_an_attribute_that_the_loop_resets_before_each_lane_passes() -> None:
    def reset(model: Net) -> None:
        model.mean = torch.zeros(3)

    run_lanes(Net("tensor"), num_lanes=9, between=reset)
    run_lanes(Net("tensor in place"), num_lanes=9, between=lambda model: model.mean.zero_())


class Average:
    """A tracked average of losses."""

    def __init__(self) -> None:
        self.value = torch.zeros(())

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"].clone()


def average(folder: str, where: str) -> str:
    snapshots = ts.Snapshots(every_s=None, every_steps=2)
    with ts.Run(folder, seed=1, lanes=4, threads=1, progress=False, snapshots=snapshots) as run:
        model, mean = run.place(small.net()), Average()
        optimizer = SGD(model.parameters(), lr=0.1)
        run.track(model=model, optimizer=optimizer, mean=mean)
        for step in run.steps(ts.Loader(small.data(), batch_size=16), steps=4):
            own = torch.zeros(())
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                step.backward(loss)
                own = own + loss.detach()
                if where == "in lanes":
                    mean.value = 0.9 * mean.value + 0.1 * loss.detach()
            step.update(optimizer)
            if where == "after lanes, of own lanes":
                mean.value = own
            if where == "after lanes":
                mean.value = mean.value + 1
        return ts.digest_state([model.state_dict(), mean.state_dict()])


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("in lanes", "the tracked state mean.value changes inside a lane"),
        ("after lanes, of own lanes", "step 3: the tracked state mean.value differs between processes"),
    ],
)
def test_tracked_state_of_own_lanes_is_refused_by_name(tmp_path: Path, where: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        run_processes(average, str(tmp_path), where, size=2)


def test_tracked_state_that_is_equal_on_all_processes_passes(tmp_path: Path) -> None:
    digest = average(str(tmp_path / "alone"), "after lanes")
    assert run_processes(average, str(tmp_path / "two"), "after lanes", size=2) == [digest] * 2


def test_a_value_of_another_pass_is_explained(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, lanes=2, threads=1, progress=False) as run:
        model, _ = small.tracked(run)
        step = next(run.steps(ts.Loader(small.data(), batch_size=16), steps=2))
        for x, _ in step:
            out = model(x)
            step.backward(out.square().mean())
        next(iter(step))
        with pytest.raises(RuntimeError, match="second time") as caught:
            step.backward(out.mean().square())
        assert "once per lane" in caught.value.__notes__[0]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return x


class Functional(nn.Module):
    """Statistics of its own, which batch_norm's kernel writes without raising the tensor's version."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("var", torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, self.mean, self.var, training=True)


def normalised() -> nn.Module:
    """Return a layer whose estimate of the largest singular value goes on moving: the second is near it."""
    layer = nn.Linear(5, 5)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([1.0, 0.99, 0.9, 0.8, 0.7])))
    return spectral_norm(layer)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (Counting(), "0.seen of Counting"),
        (Functional(), "0.mean of Functional"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "0.running_mean of InstanceNorm1d"),
        (normalised(), "0.parametrizations.weight.0._u of _SpectralNorm"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_buffer_written_by_forward_is_named(module: nn.Module, name: str) -> None:
    model = nn.Sequential(module, nn.BatchNorm1d(5))
    written = CarriedState({"model": model})
    written.begin()
    model(lane_data(0, 0))
    with pytest.raises(UsageError, match=f"the buffer {name} changes inside a lane"):
        written.check()


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", None)
        self.register_buffer("mask", torch.full((2,), torch.nan))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.positions = torch.arange(x.shape[1])
        self.mask.fill_(torch.nan)
        return x


def test_batch_norm_and_what_ends_with_the_same_bits_pass() -> None:
    model = nn.Sequential(nn.BatchNorm1d(5), Caching())
    written = CarriedState({"model": model})
    for lane in range(2):
        written.begin()
        model(lane_data(0, lane))
        written.check()


class Late(Caching):
    """Begins to write what it has seen when it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(5))
        self.is_writing = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_writing:
            self.seen += x.sum(0)
        return super().forward(x)


@pytest.mark.parametrize("writes_outside", [False, True])
def test_a_buffer_that_forward_begins_to_write_later_is_named(writes_outside: bool) -> None:
    model = Late()
    written = CarriedState({"model": model})
    for lane in range(5):
        written.begin()
        model(lane_data(0, lane))
        written.check()
        if writes_outside:  # between lanes it is allowed
            model.seen += 1
            model.mask += 1
    model.is_writing = True
    written.begin()
    model(lane_data(1, 0))
    with pytest.raises(UsageError, match="the buffer seen of Late changes inside a lane"):
        written.check()
