"""One replay: from the snapshot before a step, or from the beginning, to the end of that step.

Owns what is started where. The run's own folder is only read: all of it happens in a copied working folder.
"""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truestep import record, watch
from truestep.base.redaction import HIDDEN
from truestep.errors import UsageError
from truestep.run.checkpoint.store import find_cursors, snapshot_name
from truestep.show import Listing, read_listing, recording
from truestep.watch.launch import following
from truestep.watch.launch.following import OnStep, ignore_steps
from truestep.watch.launch.scratch import COPIED, Scratch, tail_of

_NUM_BEFORE = 20
"""How many losses before the step are shown with it."""


@dataclass(kw_only=True)
class Replayed:
    """What was seen of the step."""

    step: int
    script: watch.Script
    begun_at: int
    """The number of steps after which the replay began: those of the snapshot, or 0."""
    error: str | None = None
    """How the script failed in the step, if it did."""
    loss: float | None = None
    recorded: float | None = None
    """The loss of the step in the run's record."""
    num_compared: int = 0
    """Steps of the replay whose losses are in the run's record too."""
    first_different: int | None = None
    """The first of them whose loss has other bits."""
    losses_before: list[float] = field(default_factory=list)
    epoch: int | None = None
    samples: list[int] = field(default_factory=list)
    sample_losses: list[float] = field(default_factory=list)
    digest: str | None = None
    """Of the weights after the step; absent if it did not get that far."""
    listing: Listing = field(default_factory=lambda: Listing(files=[]))
    """The lines that ran, with their values in the step before and in the step."""

    @property
    def is_same(self) -> bool | None:
        """Whether the replay has the run's bits, as far as losses show; None if there is none to compare."""
        return self.first_different is None if self.num_compared else None

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        nonfinite = self.listing.first_nonfinite
        return {
            "step": self.step,
            "script": self.script.path,
            "begun_at": self.begun_at,
            "same": self.is_same,
            "first_different": self.first_different,
            "compared": self.num_compared,
            "loss": self.loss,
            "recorded_loss": self.recorded,
            "losses_before": self.losses_before,
            "error": self.error,
            "epoch": self.epoch,
            "samples": self.samples,
            "sample_losses": self.sample_losses,
            "weights_digest": self.digest,
            "first_nonfinite": nonfinite and nonfinite.as_fields(),
            "files": self.listing.as_fields()["files"],
        }


def replay_run(
    folder: Path,
    step: int,
    *,
    on_status: Callable[[str], None] = lambda _words: None,
    on_step: OnStep = ignore_steps,
) -> Replayed:
    """Replay one step of a `truestep.Run`, by its number, counted from 1."""
    starts = [event for event in record.read(folder / "record.jsonl") if event["kind"] == "start"]
    if not starts:
        raise UsageError(f"{folder} has no record of a start. Pass the folder of a truestep.Run.")
    start = starts[-1]
    script = _script_of(start)
    inside = _inside(folder)
    recorded = record.read_steps(folder / "record.jsonl")
    number, step = step, _index_of(step, recorded)
    cursors = find_cursors(folder / "snapshots")
    # Not the one at the step itself if there is another: values are compared with those of the step before.
    cursor = max((each for each in cursors if each < step), default=step if step in cursors else 0)
    with Scratch(Path.cwd()) as scratch:
        scratch.renew()
        copy = scratch.work / inside
        _set_back(copy, cursor)
        origin = f"the snapshot of step {cursor}" if cursor else "the beginning"
        on_status(f"replaying {script.name} from {origin} to step {number}")
        found = _replay(script, scratch, number=number, begun_at=cursor, index=step, on_step=on_step)
        again = record.read_steps(copy / "record.jsonl") if (copy / "record.jsonl").is_file() else {}
    compared = [index for index in sorted(again) if index in recorded and index <= step]
    found.num_compared = len(compared)
    found.first_different = next(
        (record.step_number(index) for index in compared if again[index]["loss"] != recorded[index]["loss"]),
        None,
    )
    found.loss = again.get(step, {}).get("loss")
    found.recorded = recorded.get(step, {}).get("loss")
    before = [index for index in sorted(recorded) if step - _NUM_BEFORE <= index < step]
    found.losses_before = [record.number(recorded[index]["loss"]) for index in before]
    return found


def replay_script(
    script: watch.Script,
    step: int,
    *,
    on_status: Callable[[str], None] = lambda _words: None,
    on_step: OnStep = ignore_steps,
) -> Replayed:
    """Run a script up to one optimizer step, counted from 1 as `check` counts, and look at that step."""
    if step < 1:
        raise UsageError(f"--step must be at least 1 for a script, got {step}. Its first step is 1.")
    with Scratch(Path.cwd()) as scratch:
        scratch.renew()
        on_status(f"running {script.name} to step {step}")
        return _replay(script, scratch, number=step, on_step=on_step)


def _replay(
    script: watch.Script,
    scratch: Scratch,
    *,
    number: int,
    begun_at: int = 0,
    index: int | None = None,
    on_step: OnStep,
) -> Replayed:
    """Run the script until the step of this number is over; `index` is its number in a `truestep.Run`."""
    folder, step = scratch.new_folder(), number - 1 - begun_at
    value: dict[str, Any] = {"step": step, "index": index, "work": str(scratch.work)}
    plan = watch.Plan(
        digests=("weights",),
        steps=step + 1,
        settings=(
            ("truestep.replay.in_script.looking:look", value),
            recording(steps=(max(0, step - 1), step)),
        ),
    )
    log = folder / "output.txt"
    with log.open("wb") as output:
        process = watch.start(
            script,
            plan=plan,
            folder=folder,
            scratch=scratch,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            following.wait(process, folder, plan=plan, on_step=on_step)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    found = max(watch.read(folder), key=lambda process: process.num_steps, default=None)
    made = found.num_steps if found is not None else 0
    if found is None or made < step or (made == step and found.ended != "raised"):
        raise UsageError(
            f"the replay ended after {made} steps, before the one that was asked for. Its last lines:\n"
            f"{tail_of(log)}"
        )
    listing = read_listing(folder)
    listing.rename(scratch.original)
    notes = _read_notes(folder)
    digests = [update.parts.get("weights") for update in found.updates if update.step == step]
    return Replayed(
        step=number,
        script=script,
        begun_at=begun_at,
        error=found.error if found.ended == "raised" else None,
        epoch=notes.get("epoch"),
        samples=notes.get("samples", []),
        sample_losses=[record.number(value) for value in notes.get("losses", ())],
        digest=digests[-1] if digests else None,
        listing=listing,
    )


def _read_notes(folder: Path) -> dict[str, Any]:
    for path in folder.glob("process-*.jsonl"):
        for event in record.read(path):
            if event["kind"] == "replay" and (event["losses"] or event.get("samples")):
                return event
    return {}


def _script_of(start: dict[str, Any]) -> watch.Script:
    """Return the script that a run was started with."""
    words = [str(word) for word in start.get("argv", [])[1:]]
    if any(HIDDEN in word for word in words):
        raise UsageError(
            "the command of this run has a secret, which the record does not keep. Replay the script itself: "
            "truestep replay SCRIPT --step N"
        )
    if start.get("note"):
        raise UsageError(
            f"this run cannot be replayed on one process: {start['note']}. Pass lanes= to Run for a result "
            f"that does not depend on the number of processes."
        )
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[1:]
    is_module = words[:1] == ["-m"]
    words = words[1:] if is_module else words
    if not words or (not is_module and not Path(words[0]).is_file()):
        name = words[0] if words else "the script"
        raise UsageError(
            f"{name} is not in this folder. Run replay in the folder in which you started the training."
        )
    return watch.Script(path=words[0], arguments=tuple(words[1:]), is_module=is_module)


def _inside(folder: Path) -> Path:
    place, here = folder.resolve(), Path.cwd().resolve()
    if not place.is_relative_to(here):
        raise UsageError(
            f"{folder} is not inside the working folder. Run replay in the folder in which you started the "
            f"training."
        )
    return place.relative_to(here)


def _index_of(number: int, recorded: dict[int, Any]) -> int:
    """Return the index of a step in the record; refuse a number that the run does not have."""
    # A step that stopped the run has no loss in the record.
    last = record.step_number(max(recorded, default=-1) + 1)
    if not 1 <= number <= last:
        raise UsageError(f"the run has steps 1 to {last}, got --step {number}.")
    return number - 1


def _set_back(folder: Path, cursor: int) -> None:
    """Make a copy of a run's folder as it was when the snapshot at a cursor was its newest."""
    (folder / COPIED).unlink(missing_ok=True)
    for name in ("record.jsonl", "lock"):
        (folder / name).unlink(missing_ok=True)
    for path in (folder / "snapshots").glob("*"):
        if path.name.partition(".")[0] != snapshot_name(cursor):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
