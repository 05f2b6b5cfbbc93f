"""Windows: when a script's every call into torch is observed, and when its steps are only counted.

Owns the calendar of steps and the swapping of functions. What is observed is in the tables of hooks.
"""

from collections.abc import Iterable
from typing import Any

from truestep.watch.plan import Plan

FIRST, LATER, AFTER_CHANGE = 16, 8, 4
EVERY, PROBE_EVERY = 256, 16
_NUM_CHANGES = 4
_SECOND = 2
"""Between the first two epochs much is compared: the second one is observed for longer."""

Row = tuple[Any, str, Any, Any]
"""An owner, the name of a function in it, what was there before (None: a base class has it), and ours."""


class Window:
    """Which steps are observed, and the functions that are ours meanwhile: for digests every step is."""

    def __init__(self, plan: Plan) -> None:
        is_short = plan.operations is None or plan.operations[1] < FIRST
        self.may_close = plan.inspect and is_short and not plan.digests
        self.is_open = True
        self.is_swapping = True
        """Whether functions are put back outside of windows. What is compiled is guarded by who they are."""
        self._until = FIRST
        self._num_changes: dict[tuple[Any, ...], int] = {}
        self.rows: list[Row] = []
        """Functions that are ours in windows, and their own outside of them."""
        self.starts = {2**power - AFTER_CHANGE // 2 for power in range(5, 8)}
        """Steps at which a window begins, besides those that the calendar has in every so many."""
        if plan.steps is not None:
            self.starts |= {plan.steps - AFTER_CHANGE, plan.steps}
        self.is_whole = True
        """Whether the step under way was observed from its beginning."""
        self.probe: Row | None = None
        """A function that is ours for one call."""

    def extend(self, step: int, num_steps: int) -> None:
        """Observe this step and those after it, so many in all."""
        self._until = max(self._until, step + num_steps)

    def extends_for(self, change: tuple[Any, ...], step: int) -> bool:
        """Whether this step and the next ones are observed because of a change."""
        num = self._num_changes[change] = self._num_changes.get(change, 0) + 1
        is_due = num <= _NUM_CHANGES or not num & (num - 1)  # the first times, then more and more rarely
        if is_due:
            self.extend(step, FIRST if num == _SECOND else AFTER_CHANGE)
        return is_due

    def begins(self, step: int) -> bool:
        """Whether a window begins at this step by the calendar; it then lasts as long as it should."""
        # The step whose values are read is in the middle.
        is_due = (step + LATER // 2) % EVERY == 0
        length = LATER if is_due else AFTER_CHANGE * (step in self.starts)
        self.extend(step, length)
        return length > 0

    def is_over(self, step: int) -> bool:
        """Whether this step is not observed any more."""
        return self.may_close and not self.begins(step) and step >= self._until

    def open(self) -> None:
        """Put our functions in place."""
        self.end_probe()
        self.is_open = True
        self._swap(self.rows)

    def close(self) -> None:
        """Put the script's own functions back. Where a module has imported ours by name, they do nothing."""
        self.is_open = False
        if self.is_swapping:
            self._swap(reversed(self.rows), is_back=True)

    def begin_probe(self, row: Row) -> None:
        """Put one function in place for once."""
        self.probe = row
        self._swap([row])

    def end_probe(self) -> None:
        """Take it away."""
        if self.probe is not None:
            self._swap([self.probe], is_back=True)
            self.probe = None

    def _swap(self, rows: Iterable[Row], *, is_back: bool = False) -> None:
        """Replace functions; what somebody else has put there meanwhile stays."""
        for owner, name, before, made in rows:
            now = vars(owner).get(name)
            if now is not (made if is_back else before):
                continue
            if is_back and before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before if is_back else made)
