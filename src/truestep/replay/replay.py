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
from truestep.replay.sights import Sight, find_sights
from truestep.run.checkpoint.store import find_cursors, snapshot_name
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
    gradients: list[dict[str, Any]] = field(default_factory=list)
    digest: str | None = None
    """Of the weights after the step; absent if it did not get that far."""
    sight: Sight = field(default_factory=Sight)

    @property
    def is_same(self) -> bool | None:
        """Whether the replay has the run's bits, as far as losses show; None if there is none to compare."""
        return self.first_different is None if self.num_compared else None

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
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
            "gradients": self.gradients,
            "weights_digest": self.digest,
            **self.sight.as_fields(),
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
        evidence = _start(script, scratch, step=step - cursor, index=step, on_step=on_step)
        again = record.read_steps(copy / "record.jsonl") if (copy / "record.jsonl").is_file() else {}
        found = _result(script, evidence, step=number, begun_at=cursor, scratch=scratch)
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
        evidence = _start(script, scratch, step=step - 1, index=None, on_step=on_step)
        return _result(script, evidence, step=step, begun_at=0, scratch=scratch)


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    process: watch.Process
    notes: dict[str, Any]
    """What was noted inside of the process."""
    step: int
    """The number of the step in this process, from 0."""
    sight: Sight


def _start(  # limits: private to this module
    script: watch.Script,
    scratch: Scratch,
    *,
    step: int,
    index: int | None,
    on_step: OnStep,
) -> _Evidence:
    """Run the script until the step is over, and return what it left."""
    folder = scratch.new_folder()
    value: dict[str, Any] = {"step": step, "index": index, "work": str(scratch.work)}
    plan = watch.Plan(
        digests=("weights",),
        operations=(max(0, step - 1), step),
        steps=step + 1,
        settings=(("truestep.replay.in_script.looking:look", value),),
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
    found = [item for item in watch.read(folder) if item.num_steps or item.operations]
    if not found or not any(operation.step == step for operation in found[0].operations):
        made = found[0].num_steps if found else 0
        raise UsageError(
            f"the replay ended after {made} steps, before the one that was asked for. Its last lines:\n"
            f"{tail_of(log)}"
        )
    return _Evidence(
        process=found[0],
        notes=_read_notes(folder),
        step=step,
        sight=find_sights(found[0], step),
    )


def _read_notes(folder: Path) -> dict[str, Any]:
    for path in folder.glob("process-*.jsonl"):
        for event in record.read(path):
            if event["kind"] == "replay" and (event["gradients"] or event["losses"]):
                return event
    return {"gradients": [], "losses": []}


def _result(
    script: watch.Script, evidence: _Evidence, *, step: int, begun_at: int, scratch: Scratch
) -> Replayed:
    process, notes = evidence.process, evidence.notes
    updates = [update for update in process.updates if update.step == evidence.step]
    return Replayed(
        step=step,
        script=script,
        begun_at=begun_at,
        error=process.error if process.ended == "raised" else None,
        epoch=notes.get("epoch"),
        samples=notes.get("samples", []),
        sample_losses=[record.number(value) for value in notes["losses"]],
        gradients=[{**row, "norm": record.number(row["norm"])} for row in notes["gradients"]],
        digest=updates[-1].parts.get("weights") if updates else None,
        sight=evidence.sight.with_files(scratch.original),
    )


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
