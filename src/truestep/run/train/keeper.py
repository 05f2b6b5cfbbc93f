"""Keeping a run: what is tracked, when it is saved, and bringing it back exactly.

Owns snapshots as training sees them: recipe, fingerprint, witness and lineage. The files are `checkpoint`'s.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from truestep.errors import (
    DifferentRun,
    SaveFailed,
    StateError,
    TruestepError,
    UsageError,
    printable,
    shared,
)
from truestep.record import Record
from truestep.run.checkpoint import BackgroundSaver, Crew, Snapshot, Store, pack, targets_of
from truestep.run.dist import World
from truestep.run.train.progress import Terminal

MAX_SHARE = 0.01
"""Of the loop's time that snapshots may take."""

_AT_THE_END = "The run ends with the snapshots before it."


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """When snapshots are taken and what a failed one means.

    One is taken whenever `every_s` seconds have passed or the step is a multiple of `every_steps`, and at
    the end of the loop. None switches a rule off. By time they never take more than a hundredth of it: a
    large state is saved less often. `keep` counts the newest ones that stay on disk. In the background means
    that training continues while a copy is written; a state that does not fit into memory twice is written
    with `in_background=False`, while training waits.
    """

    every_s: float | None = 5.0
    every_steps: int | None = None
    keep: int = 2
    on_failure: Literal["continue", "stop"] = "continue"
    in_background: bool = True

    def __post_init__(self) -> None:
        if self.keep < 2:
            raise UsageError(
                f"keep must be at least 2, got {self.keep}: a newest snapshot can turn out damaged."
            )
        if self.every_steps is not None and self.every_steps < 1:
            raise UsageError(
                f"every_steps must be at least 1, got {self.every_steps}. Pass None to switch it off."
            )
        if self.on_failure not in ("continue", "stop"):
            raise UsageError(f"on_failure must be 'continue' or 'stop', got {self.on_failure!r}.")


class Keeper:
    """Saves and restores everything that resuming needs."""

    def __init__(
        self,
        folder: Path,
        *,
        run_id: str,
        options: Snapshots,
        accept: Sequence[str],
        record: Record,
        terminal: Terminal,
        world: World,
        require_folder: Callable[[], None],
    ) -> None:
        self._world = world
        self._require_folder = require_folder
        self._group = world.new_group()
        crew = Crew(rank=world.rank, size=world.size, group=self._group)
        self._store = Store(folder / "snapshots", run_id=run_id, keep=options.keep, crew=crew)
        self._saver = BackgroundSaver(self._store)
        self._options = options
        self._accept = accept
        self._record = record
        self._terminal = terminal
        self.tracked: dict[str, Any] = {}
        self.lineage: list[dict[str, Any]] = []
        self._stops: dict[str, int] = {}  # by phase: the cursor at which the script left it early
        self.saved_cursor: int | None = None
        self.is_sharded = False
        """Whether some of what is tracked is spread over processes, so that each saves its part."""
        self._last_save_s = time.monotonic()
        self._held_s = 0.0

    def track(self, objects: Mapping[str, Any]) -> None:
        """Add objects to what is saved and restored."""
        for name, item in objects.items():
            if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise UsageError(
                    f"run.track({name}=...) needs an object with state_dict() and load_state_dict(), "
                    f"got {type(item).__name__}."
                )
            if self.tracked.get(name, item) is not item:
                raise UsageError(f"{name!r} is tracked already. Give each tracked object its own name.")
            self.tracked[name] = item

    def load(self) -> Snapshot | None:
        """Read the newest good snapshot; say which newer ones are damaged and why."""
        for name, item in self.tracked.items():
            pack({name: item.state_dict()})  # what cannot be stored is refused before anything is trained
        self._store.clean()
        snapshot, damages = self._store.load_newest(target=targets_of(self.tracked, under=("tracked",)))
        if snapshot is None and damages:
            reasons = "\n".join(f"  {damage.reason}" for damage in damages)
            raise shared(
                StateError(
                    f"none of this run's snapshots can be used, so it cannot be resumed at any step:\n"
                    f"{reasons}\nRestore one of them, or give this run a new folder to start over."
                )
            )
        for damage in damages:
            self._terminal.warn(f"damaged snapshot skipped: {damage.reason}")
            self._record.write("damage", path=damage.path.name, reason=damage.reason)
        if snapshot is not None:
            _require_form(snapshot)
            self.lineage = list(snapshot.facts["lineage"])
            self.saved_cursor = snapshot.cursor
            self._stops = self._find_stops(snapshot)
        return snapshot

    def apply(self, states: Mapping[str, Any], *, cursor: int, is_early: bool = False) -> None:
        """Give the tracked objects their states, saved at a cursor.

        Early means that the loop which they were saved in has not begun: an optimizer may still be without
        the parameter groups that the script adds before that.
        """
        saved, wanted = states.keys(), self.tracked.keys()
        if saved != wanted:
            missing, extra = sorted(wanted - saved), sorted(saved - wanted)
            raise StateError(
                f"the snapshot of step {cursor} does not fit what this script tracks: "
                + "; ".join(
                    ([f"not in the snapshot: {', '.join(missing)}"] if missing else [])
                    + ([f"not tracked now: {', '.join(extra)}"] if extra else [])
                )
                + ". Track the same names, or give this run its own folder."
            )
        for name, state in states.items():
            try:
                if isinstance(self.tracked[name], nn.Module):
                    _fill_expanded(self.tracked[name], state)
                self.tracked[name].load_state_dict(state)
            except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
                if is_early and isinstance(self.tracked[name], Optimizer):
                    continue
                # Python prints a cause too, as it is.
                cause = error if printable(error, keep="\n\t") == str(error) else None
                raise StateError(
                    f"{name} cannot take the state saved at step {cursor}: {error}\n"
                    f"Restore it, or give this run its own folder."
                ) from cause

    def compare(self, then: Mapping[str, Any], now: Mapping[str, Any], *, cursor: int) -> None:
        """Refuse to go on where recipe or fingerprint differ, unless the difference was accepted by name."""
        changes = {
            key: (then.get(key), now.get(key))
            for key in sorted({*then, *now})
            if then.get(key) != now.get(key)
        }
        # One machine of several may differ: the first process that sees a difference speaks for all.
        changes = next((found for found in self._world.gather(changes) if found), {})
        refused = [key for key in changes if key not in self._accept]
        if refused:
            lines = [
                f"  {key}: {_shown(changes[key][0])} when saved, {_shown(changes[key][1])} now"
                for key in refused
            ]
            raise shared(
                DifferentRun(
                    f"resuming at step {cursor} would not give the same bits:\n" + "\n".join(lines) + "\n"
                    f"Set it back, or pass accept={refused!r} to Run to continue; "
                    "the break is then written in the lineage."
                )
            )
        for key, (before, after) in changes.items():
            self._break(cursor, key, before, after)

    def _break(self, cursor: int, field: str, then: Any, now: Any) -> None:
        entry = {"step": cursor, "field": field, "then": then, "now": now}
        self.lineage.append(entry)
        self._record.write("lineage", **entry)
        self._terminal.warn(f"accepted at step {cursor}: {field} was {_shown(then)}, is {_shown(now)}.")

    def leave_stop(self, phase: int, *, cursor: int) -> None:
        """Note beside the newest snapshot, if there is one, that the script ended a phase early."""
        self._stops[str(phase)] = cursor
        if self.saved_cursor is not None:
            self._saver.attach(self.saved_cursor, "stopped", value=dict(self._stops))

    def take_stop(self, phase: int) -> int | None:
        """Return the cursor at which the script ended a phase early, unless it is accepted to continue it."""
        stop = self._stops.get(str(phase))
        if stop is not None and "stopped" in self._accept:
            self._break(stop, "stopped", stop, None)
            del self._stops[str(phase)]
            return None
        if stop is not None:
            self._terminal.warn(
                f"this run is finished: its script left the loop early, after step {stop:,}. To continue "
                f"from there, pass accept=['stopped'] to Run. A new folder starts over."
            )
        return stop

    def _find_stops(self, snapshot: Snapshot) -> dict[str, int]:
        found = self._store.attached(snapshot.cursor, "stopped") if self._world.is_first else None
        stops = {**snapshot.facts.get("stops", {}), **(self._world.share(found) or {})}
        if not all(type(cursor) is int and cursor >= 0 for cursor in stops.values()):
            raise StateError(
                f"what is noted beside the snapshot of step {snapshot.cursor} about an early end has another "
                f"form than truestep.Run writes: {stops}. Give this run its own folder."
            )
        return stops

    def witness(self, cursor: int) -> str | None:
        """Return the witness that was left for a snapshot, if its process lived to leave one."""
        # Whether there is one decides how gradients are summed: the first process looks for all.
        value = self._world.share(self._store.attached(cursor, "witness") if self._world.is_first else None)
        return value if isinstance(value, str) else None

    def leave_witness(self, cursor: int, value: str) -> None:
        """Leave a witness for the snapshot at a cursor, once that is written."""
        self._saver.attach(cursor, "witness", value=value)

    def report_unverified(self, cursor: int) -> None:
        """Warn that nothing is there to compare the step after a snapshot with."""
        self._record.write("unverified", cursor=cursor)
        self._terminal.warn(
            f"step {cursor} is unverified: the run ended before it left a witness for its snapshot, so "
            f"changed code, data or libraries would go unnoticed. If you changed any of them since, stop "
            f"and undo it, or use a new folder. Later snapshots are checked against this run."
        )

    def check_witness(self, cursor: int, *, then: str | None, now: str) -> None:
        """Refuse to go on where the first lane's gradient has other bits than when the snapshot was made."""
        if then == now:
            return
        if then is None:
            self.report_unverified(cursor)
            self.leave_witness(cursor, now)
            return
        # Where another difference was accepted here, other bits are what was accepted.
        is_expected = any(entry["step"] == cursor for entry in self.lineage)
        if "witness" not in self._accept and not is_expected:
            raise shared(
                DifferentRun(
                    f"the first lane's gradient at step {cursor} has other bits than when the snapshot was "
                    f"made (witness {then} then, {now} now), though no field of recipe or machine differs. "
                    f"Something changed that the bits depend on: the model's code, the data's content, a "
                    f"library. The weights were not touched. Undo the change, or pass accept=['witness'] to "
                    f"Run to continue; the break is then written in the lineage."
                )
            )
        self._break(cursor, "witness", then, now)

    @property
    def every_steps(self) -> int | None:
        """After how many steps a snapshot is due, whatever the clock says."""
        return self._options.every_steps

    def is_late(self, now_s: float) -> bool:
        """Whether a snapshot is due by time; it waits until the one before it is written."""
        if self._options.every_s is None or self._saver.is_busy:
            return False
        return now_s - self._last_save_s >= max(self._options.every_s, self._held_s / MAX_SHARE)

    def save(self, cursor: int, *, states: Mapping[str, Any], facts: Mapping[str, Any], wait: bool) -> None:
        """Take a snapshot now; it is written in the background unless `wait`."""
        self.saved_cursor = cursor
        if not (self._world.is_first or self.is_sharded):
            return  # all processes hold the same, and the first one saves it
        self._require_folder()
        started_s = time.monotonic()
        tracked = {name: item.state_dict() for name, item in self.tracked.items()}
        facts = {**facts, "lineage": self.lineage, "stops": dict(self._stops)}
        snapshot = Snapshot(cursor=cursor, states={"tracked": tracked, **states}, facts=facts)
        self._notice(self._saver.wait)  # the one before, which may have failed, does not decide over this one
        write_s = self._saver.write_s and round(self._saver.write_s, 6)  # of the one before
        self._saver.submit(snapshot, copies=self._options.in_background)
        if not self._options.in_background:
            self._notice(self._saver.wait)
        self._last_save_s = time.monotonic()
        self._held_s = self._last_save_s - started_s
        self._record.write("snapshot", cursor=cursor, held_s=round(self._held_s, 6), write_s=write_s)
        if wait:
            self.settle()

    def poll(self) -> None:
        """Notice a background save that failed, or that the run's folder is gone."""
        self._require_folder()
        self._notice(self._saver.poll)

    @property
    def must_succeed(self) -> bool:
        """Whether a failed save ends the run."""
        return self._options.on_failure == "stop"

    def settle(self) -> bool:
        """Wait for the last save before a loop ends; return whether it is on disk."""
        self._notice(self._saver.wait, then=_AT_THE_END)
        return self._saver.lost is None

    def _notice(self, settle: Callable[[], None], *, then: str = "Training continues.") -> None:
        try:
            settle()
        except (OSError, TruestepError) as error:
            self._require_folder()  # if that is gone, it is what to tell
            if not isinstance(error, SaveFailed):
                raise
            self._record.write("save-failed", reason=str(error))
            if self.must_succeed:
                raise
            self._terminal.warn(f"{error} {then}")

    def close(self) -> None:
        """Wait for the last save, and end the background thread and the group of the savers."""
        try:
            self._notice(self._saver.close, then=_AT_THE_END)
        finally:
            group, self._group = self._group, None
            self._world.end_group(group)


def _fill_expanded(module: nn.Module, state: dict[str, Any]) -> None:
    """Load the expanded tensors of a module, which torch refuses to write to: many elements are one there."""
    for name, target in module.state_dict(keep_vars=True).items():
        is_expanded = isinstance(target, torch.Tensor) and target.layout == torch.strided
        is_expanded = is_expanded and any(
            size > 1 and not step for size, step in zip(target.shape, target.stride(), strict=True)
        )
        if is_expanded and name in state and state[name].shape == target.shape:
            once = tuple(slice(None) if step else slice(0, 1) for step in target.stride())
            with torch.no_grad():
                target[once].copy_(state[name][once])
            state[name] = target  # to copy a tensor onto itself is nothing


def _require_form(snapshot: Snapshot) -> None:
    """Refuse a snapshot that no run has made: its seal says that it is whole, not who wrote it."""
    facts, states = snapshot.facts, snapshot.states
    try:
        phases, lineage = facts["phases"], facts["lineage"]
        places = [phase[key] for phase in phases for key in ("first_step", "first_epoch")]
        steps = [entry["step"] for entry in lineage]
        tables = [facts["recipe"], facts["fingerprint"], states["tracked"], states["lane_seeds"]]
        tables += [phase["loader"] for phase in phases]
        numbers = [facts["epoch"], *places, *steps]
        is_form = isinstance(phases, list) and isinstance(lineage, list) and "loader" in states
        is_form &= all(isinstance(table, dict) for table in tables)
        is_form &= isinstance(states["lane_seeds"].get("is_used"), bool)
        is_form &= all(isinstance(name, str) for name in states["tracked"])
        is_form &= all(type(number) is int and number >= 0 for number in numbers)
    except (LookupError, TypeError, AttributeError):
        is_form = False
    if not is_form:
        raise StateError(
            f"the snapshot of step {snapshot.cursor} is whole, but truestep.Run did not write it: its "
            f"recipe, phases or lineage have another form. Give this run its own folder."
        )


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
