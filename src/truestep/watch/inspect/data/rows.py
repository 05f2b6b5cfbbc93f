"""Samples of evaluation that were trained on before, in scripts that cut their batches by hand.

Owns digests of what models are given without a loader, in the first steps and the first evaluations.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.loading import RowsReused
from truestep.watch.inspect.data.samples import digest_rows, is_readable
from truestep.watch.script import module_tree
from truestep.watch.script.nested_tensors import find_tensors
from truestep.watch.script.tape import Tape

_LEAST_ROWS, _MAX_ROWS, _MAX_KEPT = 8, 4096, 1 << 14
_NUM_SCORED, _MAX_WAITING, _MAX_LINES = 3, 4, 4
_LEAST_SHARED, _LEAST_SHARE, _LEAST_DISTINCT = 8, 0.04, 6


def watch(tape: Tape) -> None:
    """Compare what a model is scored on with what it was trained on, as long as there is no loader."""
    tape.listen(_Rows(tape), "forward_begins", "backward_begins", "epoch")


class _Rows:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._waiting: list[tuple[int, frozenset[int]]] = []
        """Of forward passes that no backward pass has reached yet: the model and the rows."""
        self._trained: dict[int, set[int]] = {}
        self._passes: dict[int, list[frozenset[int]]] = {}
        self._num_scored: dict[int, int] = {}

    def epoch(self, _loader: Any, _number: int) -> None:
        self._tape.ignore(self.epoch, self.forward_begins, self.backward_begins)

    def forward_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        if torch.is_grad_enabled():
            if (
                self._tape.is_looked_at
                and module_tree.is_training(module)
                and len(self._waiting) < _MAX_WAITING
            ):
                found = _digests(args or kwargs)
                if found:
                    self._waiting.append((self._tape.number("model", module), found))
        elif not module_tree.is_training(module):
            self._score(self._tape.number("model", module), args or kwargs)

    def backward_begins(self, _losses: tuple[Tensor, ...], _how: str) -> None:
        for number, found in self._waiting:
            known = self._trained.setdefault(number, set())
            if len(known) < _MAX_KEPT:
                known |= found
                self._passes.setdefault(number, []).append(found)
        self._waiting = []

    def _score(self, number: int, given: Any) -> None:
        known = self._trained.get(number)
        if not known or self._num_scored.get(number, 0) >= _NUM_SCORED:
            return
        self._num_scored[number] = self._num_scored.get(number, 0) + 1
        own = _digests(given)
        num = len(own & known)
        # What is trained on as a whole, as a graph, is scored at other places of it.
        if num < max(_LEAST_SHARED, _LEAST_SHARE * len(own)) or own in self._passes[number]:
            return
        self._num_scored[number] = _NUM_SCORED
        self._tape.note(RowsReused(number, num, len(own), len(known), _lines(self._tape)))


def _digests(given: Any) -> frozenset[int]:
    """Return digests of the rows of the first tensor, if they are so many numbers that none is another's."""
    tensor = next((leaf for _, leaf in find_tensors(given)), None)
    if tensor is None or tensor.dim() < 2 or not tensor.is_floating_point() or not is_readable(tensor):
        return frozenset()
    if not _LEAST_ROWS <= len(tensor) <= _MAX_ROWS:
        return frozenset()
    digests, distinct = digest_rows(tensor)
    return frozenset(digests) if distinct >= _LEAST_DISTINCT else frozenset()


def _lines(tape: Tape) -> list[tuple[str, int]]:
    """Return the user's own lines that are under way, innermost first."""
    found: list[tuple[str, int]] = []
    frame: Any = sys._getframe(1)
    while frame is not None and len(found) < _MAX_LINES:
        name = frame.f_code.co_filename
        if tape.sites.is_own(name):
            found.append((name, frame.f_lineno))
        frame = frame.f_back
    return found
