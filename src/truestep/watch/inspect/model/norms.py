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
from truestep.watch.script import module_tree
from truestep.watch.script.tape import Tape

_MAX_NORMS, _LEAST_STEPS = 64, 2


def watch(tape: Tape, closeness: Closeness) -> None:
    """Note normalisation that moves though it is frozen."""
    tape.listen(_Norms(tape, closeness), "forward_begins", "forward_ends", "step_ends", close_look=True)


@dataclass
class _MovingNorm:
    """A layer whose statistics were seen to move."""

    ref: "weakref.ref[nn.Module]"
    weight: list[float]
    """Some frozen weights of its model: those of a moving average change with each step all the same."""
    num_steps: int = 0


class _Norms:
    def __init__(self, tape: Tape, closeness: Closeness) -> None:
        self._tape = tape
        self._close = closeness
        self._before: list[tuple[str, Any, Tensor]] = []
        self._moved: dict[str, tuple[nn.Module, nn.Module]] = {}
        """By path: models, and their layers that have moved since the last step."""
        self._known: dict[int, _MovingNorm] = {}

    def forward_begins(self, root: nn.Module, _args: Any, _kwargs: Any) -> None:
        self._before = []
        if not self._close:
            return
        norms = [
            (path, item) for path, item in module_tree.named_modules(root) if isinstance(item, _NormBase)
        ]
        for path, norm in norms[:_MAX_NORMS]:
            if norm.training and _is_frozen(norm) and norm.running_mean is not None:
                self._before.append((path, norm, norm.running_mean.detach().clone()))

    def forward_ends(self, root: nn.Module, _args: Any, _kwargs: Any, _output: Any) -> None:
        before, self._before = self._before, []
        for path, norm, mean in before:
            if norm.running_mean is not None and not bool((norm.running_mean == mean).all()):
                self._moved[path] = root, norm

    def step_ends(self, _optimizer: Any, _number: int) -> None:
        moved, self._moved = self._moved, {}
        lasting = [path for path, (root, norm) in moved.items() if self._moves_again(root, norm)]
        if lasting:
            self._tape.note(StatisticsMoved(lasting, _around(moved[lasting[0]][0], lasting[0])))

    def _moves_again(self, root: nn.Module, norm: nn.Module) -> bool:
        """Whether a layer moves for the second time, in a model whose frozen weights are still the same."""
        weight = _weights(root)
        known = self._known.get(id(norm))
        if known is None or known.ref() is not norm or known.weight != weight:
            known = self._known[id(norm)] = _MovingNorm(weakref.ref(norm), weight)
        known.num_steps += 1
        return known.num_steps == _LEAST_STEPS


def _is_frozen(norm: nn.Module) -> bool:
    own = [item for item in norm._parameters.values() if item is not None]
    return bool(own) and not any(item.requires_grad for item in own)


def _weights(root: nn.Module) -> list[float]:
    frozen = [item for item in module_tree.parameters(root) if not item.requires_grad and item.numel()]
    return [float(item.detach().reshape(-1)[0]) for item in frozen[:_MAX_NORMS]]


def _around(root: nn.Module, path: str) -> list[str]:
    """Return the classes of a module and of all around it, the outermost first."""
    names, found = path.split(".") if path else [], [root]
    for name in names:
        found.append(found[-1]._modules[name])  # type: ignore[arg-type]
    return [type(module).__qualname__ for module in found]
