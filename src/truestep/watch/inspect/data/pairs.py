"""Pairs of what a model is given and what its loss compares with: one input, one target.

Owns reading them from forward and backward passes, as far as it is certain which belongs to which, and two
questions: does an input keep its target from epoch to epoch, and does the input contain the target.
"""

from collections import Counter
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.loading import PairsCompared, TargetInInput
from truestep.watch.inspect.data.samples import digest_rows, is_readable
from truestep.watch.script import module_tree
from truestep.watch.script.autograd import find_nodes
from truestep.watch.script.nested_tensors import find_tensors
from truestep.watch.script.refs import Ref
from truestep.watch.script.tape import Tape

_MAX_ROWS, _MAX_READ = 8192, 1 << 15
_LEAST_ROWS, _LEAST_MATCHED = 4, 32
_MAX_ROUNDS, _MAX_WAITING = 3, 4
_MOST_REPEATED, _AGAIN = 0.02, 0.5
_MAX_COLUMNS, _LEAST_COLUMNS = 1 << 14, 3
_LEAST_SAMPLES, _LEAST_VALUES = 48, 2
_SAVING = (
    *("NllLossBackward0", "NllLoss2DBackward0", "MseLossBackward0", "SmoothL1LossBackward0"),
    *("HuberLossBackward0", "BinaryCrossEntropyBackward0", "BinaryCrossEntropyWithLogitsBackward0"),
)


def watch(tape: Tape) -> None:
    """Follow pairs through the first epochs."""
    tape.listen(_Pairs(tape), "forward_begins", "backward_begins", "counted", "closing")


class _Pairs:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._waiting: list[tuple[int, Any]] = []
        """Of this step: the site of a forward pass, and its input."""
        self._rounds = _Rounds()
        self._columns = _Columns()
        self._num_read = 0

    @property
    def _is_done(self) -> bool:
        if self._num_read > _MAX_READ:
            return True
        return self._rounds.is_done and self._columns.is_done

    def forward_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_done:
            self._tape.ignore(self.forward_begins, self.backward_begins, self.counted)
            return
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        given = next((leaf for _, leaf in find_tensors((args, kwargs))), None)
        if given is None or given.requires_grad or given.dim() < 2 or not is_readable(given):
            return
        if next(module_tree.parameters(module), None) is not None and len(self._waiting) < _MAX_WAITING:
            self._waiting.append((self._tape.under_way.forward_site, Ref(given)))

    def backward_begins(self, losses: tuple[Tensor, ...], how: str) -> None:
        waiting, self._waiting = self._waiting, []
        if self._is_done or how != "backward" or len(waiting) != 1:
            return
        site, given = waiting[0][0], waiting[0][1]()
        targets = [item for item in _targets(losses) if given is not None and len(item) == len(given)]
        if given is None or len(targets) != 1 or len(given) < _LEAST_ROWS:
            return
        self._num_read += len(given)
        self._columns.compare(given, targets[0], site)
        if not self._rounds.is_done and given.shape != targets[0].shape:
            self._note(self._rounds.add(given, targets[0], site))

    def counted(self) -> None:
        self._waiting = []

    def closing(self) -> None:
        self._note(self._rounds.compare())
        self._note(self._columns.found())

    def _note(self, found: tuple[PairsCompared | TargetInInput, int] | None) -> None:
        if found is not None:
            self._tape.mark(found[0], found[1], perf_counter_ns())


def _targets(losses: tuple[Tensor, ...]) -> Iterator[Tensor]:
    """Yield what losses compare with, as their graphs have saved it."""
    for node in find_nodes(losses, _SAVING):
        target = node._saved_target
        if target.dim() and is_readable(target) and not target.requires_grad:
            yield target


class _Rounds:
    """Inputs and their targets: of the round under way, and of the one before."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._now: dict[int, int] = {}
        self._num_rounds = 0
        self._site = 0
        self.is_done = False

    def add(  # limits: private to this module
        self, given: Tensor, target: Tensor, site: int
    ) -> tuple[PairsCompared, int] | None:
        """Add a batch; return what the round before it shows, if this one begins another."""
        rows, labels = digest_rows(given)[0], digest_rows(target)[0]
        if not target.is_floating_point() and len(set(labels)) == len(labels):
            self.is_done = True  # numbers of samples within their batch, as contrastive losses have them
            return None
        self._site = self._site or site
        num_repeated = len(rows) - len(set(rows))
        num_known = sum(row in self._now for row in rows)
        if num_repeated > _MOST_REPEATED * len(rows) or len(self._now) > _MAX_ROWS:
            self.is_done = True  # inputs that are alike are no sign
            return None
        found = None
        if num_known > _AGAIN * len(rows):
            found = self.compare()
            self._before, self._now = self._now, {}
            self._num_rounds += 1
            self.is_done = self._num_rounds >= _MAX_ROUNDS
        elif num_known > _MOST_REPEATED * len(rows):
            self.is_done = True  # drawn with replacement: there are no rounds
        self._now.update(zip(rows, labels, strict=True))
        return found

    def compare(self) -> tuple[PairsCompared, int] | None:
        """Return how many inputs of two rounds have another target, and whether all targets are the same."""
        before, now = self._before, self._now
        shared = before.keys() & now.keys()
        if len(shared) < _LEAST_MATCHED:
            return None
        num_changed = sum(before[row] != now[row] for row in shared)
        others, own = Counter(before.values()), Counter(now.values())
        num_other = sum(((others - own) + (own - others)).values())
        num_missing = len(before.keys() ^ now.keys())
        facts = PairsCompared(len(now), len(shared), num_changed, num_missing, num_other)
        return facts, self._site


class _Columns:
    """Numbers of the input that have been equal to the target in every sample so far."""

    def __init__(self) -> None:
        self._equal: set[int] | None = None  # no tensor: the script may count them
        self._shape: torch.Size | None = None
        self._values: set[float] = set()
        self._num = 0
        self._site = 0
        self.is_done = False

    def compare(self, given: Tensor, target: Tensor, site: int) -> None:  # limits: private to this module
        """Compare all numbers of each sample with its target, if that is one number."""
        if self.is_done:
            return
        num = given[0].numel()
        is_single = target.numel() == len(target)
        is_fit = is_single and given.is_floating_point() and _LEAST_COLUMNS <= num <= _MAX_COLUMNS
        if not is_fit or self._shape not in (None, given.shape[1:]):
            self.is_done = True
            return
        values = target.detach().reshape(-1, 1).to(given.dtype)
        is_equal = (given.detach().reshape(len(given), -1) == values).all(0)
        equal = set(is_equal.nonzero().flatten().tolist())
        self._equal = equal if self._equal is None else self._equal & equal
        self._values.update(values.flatten().tolist()[:64])
        self._shape, self._site, self._num = given.shape[1:], site, self._num + len(given)
        self.is_done = not self._equal or self._num >= _MAX_ROWS

    def found(self) -> tuple[TargetInInput, int] | None:
        """Return which numbers of the input were the target each time; None for too few samples."""
        if self._equal is None or self._shape is None or self._num < _LEAST_SAMPLES:
            return None
        if len(self._values) < _LEAST_VALUES:
            return None
        columns = sorted(self._equal)
        return TargetInInput(list(self._shape), self._num, len(self._values), columns[:8]), self._site
