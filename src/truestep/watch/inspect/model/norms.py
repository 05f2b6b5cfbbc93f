"""Normalisation whose parameters are frozen and whose running statistics move all the same.

Owns the comparison of statistics before and after a call. Small tensors only, at the steps looked at closely.
"""

import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from truestep.watch.evidence.facts.structure import StatisticsMoved
from truestep.watch.inspect.training.closeness import Closeness
from truestep.watch.script import parts
from truestep.watch.script.refs import ByIdentity
from truestep.watch.script.tape import Tape

_MAX_NORMS = 64


def watch(tape: Tape, closeness: Closeness) -> None:
    """Note normalisation that moves though it is frozen."""
    tape.listen(_Norms(tape, closeness), "forward_begins", "forward_ends", "step_ends", near=True)


@dataclass
class _MovingNorm:
    """A layer whose statistics were seen to move."""

    ref: "weakref.ref[nn.Module]"
    path: str
    around: list[str]
    weight: list[float]
    """Some frozen weights of its model: those of a moving average change with each step all the same."""
    num_steps: int = 0
    is_reported: bool = False


class _Norms:
    def __init__(self, tape: Tape, closeness: Closeness) -> None:
        self._tape = tape
        self._close = closeness
        self._before: list[tuple[str, Any, Tensor]] = []
        self._moved: list[_MovingNorm] = []
        self._known: dict[int, _MovingNorm] = {}
        self._lists = ByIdentity[nn.Module, list[str]]()

    def forward_begins(self, root: nn.Module, _args: Any, _kwargs: Any) -> None:
        self._before = []
        if not self._close:
            return
        if root not in self._lists:
            self._lists[root] = [
                path for path, module in parts.named_modules(root) if isinstance(module, _NormBase)
            ]
        for path in self._lists[root][:_MAX_NORMS]:
            norm = _find(root, path)
            if norm is not None and norm.training and _is_frozen(norm) and norm.running_mean is not None:
                self._before.append((path, norm, norm.running_mean.detach().clone()))

    def forward_ends(self, root: nn.Module, _args: Any, _kwargs: Any, _output: Any) -> None:
        before, self._before = self._before, []
        for path, norm, mean in before:
            if norm.running_mean is not None and not bool((norm.running_mean == mean).all()):
                self._add(root, path, norm)

    def _add(self, root: nn.Module, path: str, norm: nn.Module) -> None:
        norm_state = self._known.get(id(norm))
        weight = _weights(root)
        if norm_state is None or norm_state.ref() is not norm or norm_state.weight != weight:
            norm_state = self._known[id(norm)] = _MovingNorm(
                weakref.ref(norm), path, _around(root, path), weight
            )
        if norm_state not in self._moved:
            self._moved.append(norm_state)

    def step_ends(self, _optimizer: Any, _number: int) -> None:
        moved, self._moved = self._moved, []
        lasting = []
        for norm_state in moved:
            norm_state.num_steps += 1
            if norm_state.num_steps > 1 and not norm_state.is_reported:
                norm_state.is_reported = True
                lasting.append(norm_state)
        if lasting:
            self._tape.note(StatisticsMoved([norm_state.path for norm_state in lasting], lasting[0].around))


def _find(root: nn.Module, path: str) -> Any:
    try:
        found = root.get_submodule(path) if path else root
    except AttributeError:  # it was replaced
        return None
    return found if isinstance(found, _NormBase) else None


def _is_frozen(norm: nn.Module) -> bool:
    own = [item for item in norm._parameters.values() if item is not None]
    return bool(own) and not any(item.requires_grad for item in own)


def _weights(root: nn.Module) -> list[float]:
    frozen = [item for item in parts.parameters(root) if not item.requires_grad and item.numel()]
    return [float(item.detach().reshape(-1)[0]) for item in frozen[:_MAX_NORMS]]


def _around(root: nn.Module, path: str) -> list[str]:
    """Return the classes of a module and of all around it, the outermost first."""
    names, found = path.split(".") if path else [], [root]
    for name in names:
        found.append(found[-1]._modules[name])  # type: ignore[arg-type]
    return [type(module).__qualname__ for module in found]
