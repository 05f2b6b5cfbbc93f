"""The loop over global steps: fetch, hand out, finish, save when due, stop when asked.

The only place that knows where training stands. What happens inside a step is `step`'s.
"""

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from truestep.base.bits import digest_state
from truestep.base.redaction import redacted
from truestep.errors import NonFiniteError, UsageError
from truestep.record import step_number
from truestep.run.data import Feed
from truestep.run.dist.pulse import Pulse
from truestep.run.train.interrupt import Interrupt
from truestep.run.train.keeper import Keeper
from truestep.run.train.progress import Terminal
from truestep.run.train.step import NONFINITE_ADVICE, Parts, Step

_clock = time.monotonic

_TICK_S = 0.5
"""How often values are fetched from the device and the terminal is refreshed."""


@dataclass(kw_only=True)
class Position:
    """Where training stands. The cursor is the number of finished steps: the index of the next one."""

    cursor: int = 0
    epoch: int = 0
    """The epoch of the next step."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the loop works with besides a step's own parts."""

    position: Position
    keeper: Keeper
    terminal: Terminal
    pulse: Pulse
    interrupt: Interrupt
    describe: Callable[[], dict[str, Any]]
    """The facts to store in a snapshot taken now."""


class Steps:
    """The steps of one phase of training; an iterator over them ends the phase when it is dropped."""

    def __init__(self, parts: Parts, around: Surroundings, *, feed: Feed, total: int | None) -> None:
        self._parts, self._around, self._feed, self._total = parts, around, feed, total
        self._step: Step | None = None
        self._waited_s = 0.0
        self._witness_job: Callable[[str], None] | None = None
        self._is_alone = parts.world.size == 1
        self._started_s = time.monotonic()
        self._tick_due_s = self._started_s + _TICK_S
        self._position, self._every_steps = around.position, around.keeper.every_steps
        # Looked up once: a step has a budget of microseconds.
        self._next_batch = feed.batches.__next__
        self._seeds, self._interrupt = parts.seeds, around.interrupt
        self._set_seeds = parts.seeds.set
        self._add_step = parts.journal.steps.append
        self._first = around.position.cursor
        self._is_over = False
        self.left_at: int | None = None
        """The cursor at which the script left this loop, between two steps and before its end; else None."""
        self.unverified_at: int | None = None
        """The cursor of the snapshot whose witness no step of this loop was compared with yet; else None."""
        around.terminal.start(done=self._first, total=total)
        around.interrupt.install()

    def __iter__(self) -> Iterator[Step]:
        try:
            while (step := self._advance()) is not None:
                yield step
        finally:
            self.abandon()  # right after a `break`: code behind the loop is outside of its last step

    def _advance(self) -> Step | None:
        step, self._step = self._step, None
        if step is not None:
            self._finish(step)
        asked_s = _clock()
        try:
            batch = self._next_batch()
        except StopIteration:
            self._end()
            return None
        self._waited_s = _clock() - asked_s
        self._step = step = Step(self._parts, batch)
        if self._witness_job is not None:
            step.on_witness, self._witness_job = self._witness_job, None
        # bits: after the batch was fetched, which without workers leaves the generators anywhere.
        self._set_seeds(batch.step, 0)
        return step

    @property
    def cursor(self) -> int:
        """The number of steps whose update is done."""
        is_done = self._step is not None and self._step.is_updated
        return self._position.cursor + is_done

    def expect_witness(self, value: str | None) -> None:
        """Compare the first lane's gradient of the next step with the one that the snapshot's process had.

        None: that process ended before it had one, and the step is reported as unverified.
        """
        self.unverified_at = cursor = self._position.cursor

        def check(now: str) -> None:
            self.unverified_at = None
            self._around.keeper.check_witness(cursor, then=value, now=now)

        self._witness_job = check

    def _finish(self, step: Step) -> None:
        if not step.is_updated:
            raise UsageError(
                f"step {step_number(step.index)} ended without step.update(optimizer): nothing "
                f"was learned from it."
            )
        now_s = self._count(step)
        if self._every_steps is not None and self._position.cursor % self._every_steps == 0:
            self._save(wait=False)
        if now_s >= self._tick_due_s:
            self._tick(now_s)
        if self._is_alone:
            if self._interrupt.received is not None:
                self._prepare_to_stop(self._interrupt.received)
        else:
            self._do_as_agreed(step)

    def _count(self, step: Step) -> float:
        """Take in a step whose updates are done; return the time."""
        step.settle()
        index, epoch, is_epoch_end, _, _ = step.batch
        if self._seeds.is_touched:
            self._seeds.end_round()
        # bits: the processes have agreed on this round already, so what its end drew counts in the next one.
        self._seeds.leave()
        position = self._position
        position.cursor = index + 1
        position.epoch = epoch + is_epoch_end
        now_s = _clock()
        self._add_step((index, now_s - self._started_s, step.terms, self._waited_s))
        return now_s

    def _do_as_agreed(self, step: Step) -> None:
        """Save or stop where all processes do; what this one saw since waits for the next step."""
        agreed, exchange = step.agreed, self._parts.exchange
        self._around.pulse.step = self._position.cursor
        assert agreed is not None
        if agreed.is_save_due and self._around.keeper.saved_cursor != self._position.cursor:
            self._save(wait=False)
        exchange.received = self._interrupt.received
        if agreed.received is not None:
            self._interrupt.take(agreed.received)
            self._prepare_to_stop(agreed.received)

    def _tick(self, now_s: float) -> None:
        self._tick_due_s = now_s + _TICK_S
        self._parts.journal.advance()
        self._check_finite()
        self._around.terminal.advance(self._position.cursor, self._parts.journal.last_loss)
        self._around.keeper.poll()
        if self._around.keeper.is_late(now_s):
            if self._is_alone:
                self._save(wait=False)
            else:
                self._parts.exchange.is_save_due = self._parts.world.is_first

    def _flush(self) -> None:
        """Fetch what the device has."""
        self._parts.journal.flush()
        self._check_finite()

    def _check_finite(self) -> None:
        """End the run if the device had to leave a step out, as far as it is known."""
        left_out = self._parts.journal.first_nonfinite
        if left_out is not None and self._parts.nonfinite == "stop":
            number = step_number(left_out)
            raise NonFiniteError(
                f"step {number}: the loss or a gradient is not finite. "
                f"The weights are those before it. {NONFINITE_ADVICE} {self._parts.look_at(number)}"
            )

    def _save(self, *, wait: bool, is_end: bool = False) -> None:
        """Take a snapshot here; the next step's first lane then leaves its witness."""
        self._flush()
        cursor = self._position.cursor
        self._parts.audit.compare_replicas(self._parts.tracked, step=cursor)
        states: dict[str, Any] = {
            "loader": self._feed.state_dict(),
            "lane_seeds": {"is_used": self._seeds.is_used, "is_touched": self._seeds.is_touched},
        }
        if self._parts.scaler is not None:
            states["scaler"] = self._parts.scaler.state_dict()
        facts = {**self._around.describe(), "is_end": is_end}
        self._around.keeper.save(cursor, states=states, facts=facts, wait=wait)
        self._witness_job = lambda value: self._around.keeper.leave_witness(cursor, value)

    def _prepare_to_stop(self, received: signal.Signals) -> None:
        """Save, and let the next step go as far as its witness before the script ends."""
        if self._around.keeper.saved_cursor != self._position.cursor:
            self._save(wait=True)
        leave_witness = self._witness_job

        def stop(value: str) -> None:
            if leave_witness is not None:
                leave_witness(value)
            self._stop(received)

        self._witness_job = stop

    def _stop(self, received: signal.Signals) -> NoReturn:
        cursor = self._position.cursor
        self._close()
        self._interrupt.received = None  # answered: the same run may go on with another loop
        saved = "snapshot saved" if self._around.keeper.settle() else "its snapshot could not be saved"
        is_launched, is_notebook = self._parts.world.size > 1, self._around.terminal.is_notebook
        command = "the same command" if is_launched else shlex.join(redacted(sys.orig_argv))
        again = "Run the cell again to resume; without `with`, call run.close() first."
        advice = again if is_notebook else f"Resume with: {command}"
        of = "" if self._total is None else f" of {self._total:,}"
        self._around.terminal.warn(f"stopped by {received.name} after step {cursor:,}{of}; {saved}. {advice}")
        # A notebook's kernel lives on, and knows this one as what its Interrupt button does.
        raise KeyboardInterrupt if is_notebook else SystemExit(128 + received)

    def _end(self) -> None:
        """All steps are done: save, say so."""
        self._flush()
        self._around.keeper.poll()
        around, cursor = self._around, self._position.cursor
        if around.keeper.saved_cursor != cursor:
            self._save(wait=False, is_end=True)
            self._witness_job = None
        self._close()
        if around.keeper.must_succeed:
            around.keeper.settle()  # at exit it would be too late to fail
        received = [item for item in self._parts.world.gather(around.interrupt.received) if item is not None]
        if received:
            self._stop(received[0])
        if cursor == self._first:
            around.terminal.say(f"all {cursor:,} steps are done; use a new folder to start over")
        else:
            seconds = time.monotonic() - self._started_s
            tracked = {name: item.state_dict() for name, item in around.keeper.tracked.items()}
            digest = digest_state(tracked) if around.terminal.is_on or self._parts.is_sharded else ""
            around.terminal.say(
                f"step {cursor:,}: {cursor - self._first:,} steps in {seconds:,.1f} s, "
                f"loss {self._parts.journal.last_loss:.4f}, digest {digest[:12]}{self._audits()}"
            )

    def _audits(self) -> str:
        num_equal = self._parts.audit.num_equal
        return f", {num_equal:,} lanes audited" if num_equal else ""

    def _close(self) -> None:
        self._is_over = True
        self._feed.close()
        self._seeds.set_all(self._position.cursor)
        self._interrupt.remove()
        self._parts.journal.flush()
        self._around.terminal.stop()

    def abandon(self) -> None:
        """Settle a loop that was left early: count its last finished step, give back signals and workers."""
        if self._is_over:
            return
        step, self._step = self._step, None
        if step is not None and step.is_updated:
            self._count(step)
        if step is not None and (step.is_updated or not step.is_begun):
            self.left_at = self._position.cursor
        self._close()
