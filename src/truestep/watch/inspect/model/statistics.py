"""Copies of a trained model that have its weights, and not the running statistics of its BatchNorm.

Owns the comparison of both. The last evaluation of a copy counts: it may get its statistics before that.
"""

import weakref
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from truestep.watch.evidence.facts.structure import StatisticsMissing
from truestep.watch.script import parts
from truestep.watch.script.refs import ByIdentity
from truestep.watch.script.tape import Tape

_MAX_NORMS, _MAX_COPIES, _MAX_TRAINED = 64, 8, 16


def watch(tape: Tape) -> None:
    """Look at models with BatchNorm when they are called in eval mode, and when the script ends."""
    tape.attend(_Statistics(tape), "forward_begins", "closing")


@dataclass
class _Copy:
    model: "weakref.ref[nn.Module]"
    site: int
    num_calls: int = 0
    found: StatisticsMissing | None = None


class _Statistics:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._paths = ByIdentity[nn.Module, list[str]]()
        self._trained: dict[int, weakref.ref[nn.Module]] = {}
        self._copies: dict[int, _Copy] = {}

    def forward_begins(self, root: nn.Module, _args: Any, _kwargs: Any) -> None:
        paths = self._paths.get(root)
        if paths is None:
            paths = self._paths[root] = [
                path for path, module in parts.named_modules(root) if isinstance(module, _BatchNorm)
            ][:_MAX_NORMS]
        if not paths:
            return
        number = self._tape.number("model", root)
        if parts.is_training(root):
            if number not in self._trained and len(self._trained) < _MAX_TRAINED:
                self._trained[number] = weakref.ref(root)
            return
        known = self._copies.get(number)
        if known is None:
            if not self._tape.num_steps or not _is_untouched(root, paths) or len(self._copies) >= _MAX_COPIES:
                return
            known = self._copies[number] = _Copy(weakref.ref(root), self._tape.sites.here(1))
        known.num_calls += 1
        if known.found is not None and not _is_untouched(root, paths):
            known.found = None
        elif not known.num_calls & (known.num_calls - 1):
            self._compare(known, number)

    def closing(self) -> None:
        for number, item in self._copies.items():
            self._compare(item, number, is_on_host=False)
            if item.found is not None:
                self._tape.mark(item.found._replace(num_calls=item.num_calls), item.site, perf_counter_ns())

    def _compare(self, item: _Copy, number: int, *, is_on_host: bool = True) -> None:
        root = item.model()
        if root is None or (is_on_host and not all(one.is_cpu for one in parts.buffers(root))):
            return  # nothing is read from a device while the script trains
        paths = self._paths[root]
        norms = _norms(root, paths)
        item.found = None
        if len(norms) < len(paths) or not all(_is_first(norm) and _has_learned(norm) for norm in norms):
            return
        for other, reference in self._trained.items():
            trained = reference()
            if trained is None or other == number or _short(self._paths[trained]) != _short(paths):
                continue
            models = _norms(trained, self._paths[trained])
            if [norm.num_features for norm in models] != [norm.num_features for norm in norms]:
                continue
            if len(models) == len(norms) and all(_has_learned(norm) and _has_seen(norm) for norm in models):
                item.found = StatisticsMissing(
                    model=number,
                    source=other,
                    class_name=type(root).__qualname__,
                    paths=paths,
                    num_calls=item.num_calls,
                    num_batches=int(models[0].num_batches_tracked),
                    mean=max(float(norm.running_mean.abs().max()) for norm in models),
                    lowest=min(float(norm.running_var.min()) for norm in models),
                    highest=max(float(norm.running_var.max()) for norm in models),
                )
                return


def _norms(root: nn.Module, paths: list[str]) -> list[Any]:
    modules = dict(parts.named_modules(root))
    found = [modules.get(path) for path in paths]
    return [norm for norm in found if isinstance(norm, _BatchNorm) and _is_readable(norm)]


def _is_readable(norm: Any) -> bool:
    tensors = (norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.weight, norm.bias)
    return norm.track_running_stats and all(item is not None and _is_plain(item) for item in tensors)


def _is_plain(item: Tensor) -> bool:
    return isinstance(item, nn.Buffer) or parts.is_plain(item)


def _is_untouched(root: nn.Module, paths: list[str]) -> bool:
    """Whether the first of its statistics may be those of a new layer; a device is not asked."""
    norms = _norms(root, paths[:1])
    return bool(norms) and (not norms[0].num_batches_tracked.is_cpu or not int(norms[0].num_batches_tracked))


def _is_first(norm: Any) -> bool:
    """Whether a layer that is in eval mode has never seen a batch."""
    return (
        not norm.training
        and not int(norm.num_batches_tracked)
        and not bool(norm.running_mean.any())
        and bool((norm.running_var == 1).all())
    )


def _has_seen(norm: Any) -> bool:
    return int(norm.num_batches_tracked) > 0 and bool(norm.running_mean.any())


def _has_learned(norm: Any) -> bool:
    """Whether weight or bias are no longer those of a new layer."""
    with torch.no_grad():
        return bool((norm.weight != 1).any()) and bool(norm.bias.any())


def _short(paths: list[str]) -> list[str]:
    """Return paths without what all have in common in front, as `module.` of a wrapper."""
    rows = [path.split(".") for path in paths]
    while all(len(row) > 1 for row in rows) and len({row[0] for row in rows}) == 1:
        rows = [row[1:] for row in rows]
    return [".".join(row) for row in rows]
