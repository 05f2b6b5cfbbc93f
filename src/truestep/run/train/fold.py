"""Folding metric states: each lane's state made on its own, then all of them made into one, in order.

Knows torchmetrics' metrics and collections by what they have, without importing it. A state says itself how
it is combined across processes (`dist_reduce_fx`); here a lane of a batch takes the place of a process.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from truestep.base.bits import digest

_KINDS = {f"dim_zero_{kind}": kind for kind in ("sum", "mean", "max", "min", "cat")}
_KEPT_BY_TORCHMETRICS = {"_update_count", "_computed", "_forward_cache", "_cache", "_is_synced", "_defaults"}


State = list[Any]
"""One lane's state: a tensor or a list for each named state of each metric."""


def members(metric: Any) -> dict[str, Any]:
    """Return the single metrics of a collection, or a metric by itself; none if it is not torchmetrics'."""
    if isinstance(metric, nn.ModuleDict) and hasattr(metric, "compute_groups"):
        return dict(metric._modules)
    return {type(metric).__name__: metric} if hasattr(metric, "_reductions") else {}


def find_obstacle(metric: Any) -> str | None:
    """Return why the states of several lanes cannot be made into one, or None if they can."""
    parts = members(metric)
    if not parts:
        return f"{type(metric).__name__} is not a torchmetrics Metric or MetricCollection"
    for name, part in parts.items():
        if any(hasattr(child, "_reductions") for child in part.modules() if child is not part):
            return f"{name} wraps other metrics and keeps more than their states"
        if not part._defaults:
            return f"{name} has no state made with add_state"
        for state in part._defaults:
            obstacle = _obstacle_in(part, state)
            if obstacle is not None:
                return f"the state {state!r} of {name} {obstacle}"
    return None


def _obstacle_in(metric: Any, state: str) -> str | None:
    kind, default = _kind(metric, state), metric._defaults[state]
    if kind == "list" and _reduction_name(metric, state) not in ("cat", "none"):
        return f"is a list with dist_reduce_fx={metric._reductions[state]!r}"
    if kind == "sum" and bool(default.any()):
        return "is summed and does not begin at zero"
    if kind == "cat" and default.numel():
        return "is concatenated and does not begin empty"
    if kind == "none" and not _is_own(metric):
        # torchmetrics' own (PearsonCorrCoef) take a stack of states in compute; others seldom mean that.
        return "has dist_reduce_fx=None, which does not define how states are combined"
    return None


def _kind(metric: Any, state: str) -> str:
    return "list" if isinstance(metric._defaults[state], list) else _reduction_name(metric, state)


def _reduction_name(metric: Any, state: str) -> str:
    reduction = metric._reductions[state]
    if reduction is None:
        return "none"
    is_known = (getattr(reduction, "__module__", None) or "").startswith("torchmetrics.")
    return _KINDS.get(reduction.__name__, "custom") if is_known else "custom"


def _is_own(metric: Any) -> bool:
    owner = next(base for base in type(metric).__mro__ if "compute" in vars(base))
    return owner.__module__.startswith("torchmetrics.")


@contextmanager
def without_sync(metric: Any) -> Iterator[None]:
    """Keep torchmetrics from adding up all processes' states in compute: each has the whole already."""
    parts: list[Any] = list(metric.modules()) if isinstance(metric, nn.Module) else []
    former = [(part, part._to_sync) for part in parts if hasattr(part, "_to_sync")]
    for part, _ in former:
        part._to_sync = False
    try:
        yield
    finally:
        for part, to_sync in former:
            part._to_sync = to_sync


class Fold:
    """One metric (or collection) whose state is folded from the states of lanes."""

    def __init__(self, metric: Any) -> None:
        if getattr(metric, "_enable_compute_groups", False) is True:
            # Groups found by comparing states of one lane are chance: on other processes they are others.
            metric._groups_checked = False
            metric._init_compute_groups()
        self._metrics = list(members(metric).values())
        self._states = [
            (metric, state, _kind(metric, state)) for metric in self._metrics for state in metric._defaults
        ]
        self._total: State = []
        self._num_lanes = 0
        for part in self._metrics:
            part.reset()
        for part, state, kind in self._states:
            if kind == "list":
                setattr(part, state, [])  # members of a compute group had one list together

    def make(self, outputs: tuple[Any, ...]) -> State:
        """Return the state of one lane; the metric is empty afterwards."""
        for metric in self._metrics:
            metric.update(*outputs)
        values = [getattr(metric, state) for metric, state, _ in self._states]
        # A copy of the list: reset empties the list itself.
        made = [list(value) if isinstance(value, list) else value for value in values]
        for metric in self._metrics:
            metric.reset()
        return made

    def find_hidden(self, outputs: tuple[Any, ...]) -> str | None:
        """Return what, besides its states, a further update with the same outputs changes in a metric."""
        before = [_attributes(metric) for metric in self._metrics]
        self.make(outputs)
        for metric, attributes in zip(self._metrics, before, strict=True):
            for name, value in _attributes(metric).items():
                if attributes.get(name) != value:
                    return f"update of {type(metric).__name__} writes {name!r}, no state made with add_state"
        return None

    def add(self, states: Iterable[State]) -> None:
        """Fold further states, in the order given."""
        for state in states:
            # bits: one after the other, on the CPU, on one process as on many.
            self._num_lanes += 1
            if self._num_lanes == 1:
                kinds = [kind for *_, kind in self._states]
                self._total = [_first(value, kind) for value, kind in zip(state, kinds, strict=True)]
                continue
            for index, (*_, kind) in enumerate(self._states):
                self._total[index] = _combine(self._total[index], state[index], kind)

    def load(self) -> None:
        """Give the metric the folded state; it then computes over all lanes."""
        if not self._num_lanes:
            return
        for (metric, state, kind), total in zip(self._states, self._total, strict=True):
            value = _finish(total, self._num_lanes, kind=kind, metric=metric, state=state)
            if not (kind == "list" and metric.compute_on_cpu):
                value = to_device(value, metric.device)
            setattr(metric, state, value)
        for metric in self._metrics:
            metric._update_count = self._num_lanes
            metric._computed = None
        self._total = []


def _first(value: Any, kind: str) -> Any:
    if kind in ("list", "sum", "max", "min"):
        return value
    return value.double() if kind == "mean" else [value]


def _combine(total: Any, value: Any, kind: str) -> Any:
    if kind in ("sum", "mean"):
        return total + value
    if kind in ("max", "min"):
        return torch.max(total, value) if kind == "max" else torch.min(total, value)
    total.extend(value if kind == "list" else [value])
    return total


def _finish(total: Any, num_lanes: int, *, kind: str, metric: Any, state: str) -> Any:
    if kind == "mean":
        # Every lane is one update, so the mean weighted by updates is the plain one.
        default = metric._defaults[state]
        return (total / num_lanes).to(default.dtype if default.is_floating_point() else torch.float32)
    if kind == "cat":
        return torch.cat(total)
    if kind == "custom":
        return metric._reductions[state](torch.stack(total))
    if kind == "none":
        return torch.stack(total) if num_lanes > 1 else total[0]
    return total


def _map(value: Any, change: Callable[[Any], Any], kind: type) -> Any:
    """Change everything of one kind in any nest of lists, tuples and dictionaries."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: _map(item, change, kind) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_map(item, change, kind) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def to_device(value: Any, device: torch.device) -> Any:
    """Move the tensors of a nest of states."""
    return _map(value, lambda tensor: tensor.detach().to(device), torch.Tensor)


class _Place(NamedTuple):
    """Stands for a tensor in what is sent."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class Packed(NamedTuple):
    """A nest of states as it is sent: pickling a tensor takes 50 us, so there is one per dtype."""

    states: Any
    flat: dict[torch.dtype, torch.Tensor]


def pack(states: Any) -> Packed:
    """Take the tensors out of a nest of states, all of one dtype into one."""
    tensors: dict[torch.dtype, list[torch.Tensor]] = {}

    def take(tensor: torch.Tensor) -> _Place:
        tensors.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
        return _Place(tensor.dtype, tuple(tensor.shape))

    places = _map(states, take, torch.Tensor)
    return Packed(places, {dtype: torch.cat(items) for dtype, items in tensors.items()})


def unpack(packed: Packed) -> Any:
    """Return the nest of states that was packed."""
    starts = dict.fromkeys(packed.flat, 0)

    def put(place: _Place) -> torch.Tensor:
        start = starts[place.dtype]
        starts[place.dtype] = stop = start + math.prod(place.shape)
        return packed.flat[place.dtype][start:stop].view(place.shape)

    return _map(packed.states, put, _Place)


def _attributes(metric: Any) -> dict[str, Any]:
    ignored = _KEPT_BY_TORCHMETRICS | set(metric._defaults)
    return {name: _token(value) for name, value in vars(metric).items() if name not in ignored}


def _token(value: Any) -> Any:
    """Return something small that differs when the value does."""
    if isinstance(value, torch.Tensor):
        return digest([("", value)])
    if isinstance(value, list | tuple):
        return [_token(item) for item in value]
    if isinstance(value, dict):
        return {key: _token(item) for key, item in value.items()}
    return value if isinstance(value, bool | int | float | str | None) else id(value)
