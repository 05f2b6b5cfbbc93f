"""Why a run that was killed and resumed is not the one that was not.

Owns what a checkpoint lacks, as it shows in the first steps after the resume. Reads digests and moments only.
"""

from collections.abc import Sequence

from truestep.verify.causes import Finding
from truestep.verify.chains import Parting, Resumed
from truestep.verify.runs import Ran
from truestep.watch import Moment, Process, Update


def explain(first: Ran, second: Ran, *, parting: Parting, resumed: Resumed) -> Finding:
    """Return what was not brought back."""
    ours, theirs = first.first, second.first
    assert ours is not None
    assert theirs is not None
    saved = _last(ours.moments, "save") or _last(theirs.moments, "load")
    if resumed.after is None:
        return _at(saved, "model-not-saved")
    if parting.first is None or parting.second is None:
        return _at(saved, "loader-position-not-saved", "the resumed run makes another number of steps")
    if {"batch", "inputs"} & set(parting.parts):
        return _explain_data(first, second, parting=parting, resumed=resumed)
    if parting.what in ("loss", "gradients"):
        wrapped = _last(theirs.moments, "parallel")
        is_wrapped = wrapped is not None and wrapped.facts.get("what") == "DistributedDataParallel"
        if parting.what == "gradients" and is_wrapped:
            return _at(
                wrapped, "bucket-rebuild", "batch, loss and weights before are the same on this process"
            )
        drawn = _draws(ours)
        return _at(saved, "generator-not-saved" if drawn else "state-not-saved", *drawn)
    return _explain_state(first, second, parting=parting)


def _explain_state(first: Ran, second: Ran, *, parting: Parting) -> Finding:
    """Same data, same gradients: what is made of them differs."""
    ours, theirs = first.first, second.first
    assert ours is not None
    assert theirs is not None
    saved = _last(ours.moments, "save") or _last(theirs.moments, "load")
    restored = {moment.facts["what"] for moment in theirs.moments if moment.kind == "restore"}
    has_scheduler = any(moment.kind == "scheduler" for moment in ours.moments)
    if parting.what == "settings" and has_scheduler:
        said = "no scheduler's state was loaded" if "scheduler" not in restored else "a scheduler was loaded"
        return _at(saved, "scheduler-not-saved", f"{said}; the learning rate differs at this step")
    if parting.what == "buffers":
        lost = [moment for moment in theirs.moments if moment.kind == "restore" and moment.value]
        missing = [key for moment in lost for key in moment.value.get("missing", [])]
        signs = [f"loaded without {', '.join(missing[:4])}"] if missing else []
        return _at(saved, "buffers-not-saved", *signs)
    loaded = "an optimizer's" if "optimizer" in restored else "no optimizer's"
    return _at(saved, "optimizer-not-saved", f"{loaded} state was loaded")


def _explain_data(first: Ran, second: Ran, *, parting: Parting, resumed: Resumed) -> Finding:
    """Other batches after the resume."""
    ours, theirs = first.first, second.first
    assert ours is not None
    assert theirs is not None
    saved = _last(ours.moments, "save") or _last(theirs.moments, "load")
    assert parting.second is not None
    steps = ((ours, parting.step), (theirs, parting.second.step))
    epochs = [
        _last([moment for moment in process.moments if moment.step <= step], "set_epoch")
        for process, step in steps
    ]
    if epochs[0] and epochs[1] and epochs[0].facts["epoch"] != epochs[1].facts["epoch"]:
        numbers = [moment.facts["epoch"] for moment in epochs if moment is not None]
        said = f"set_epoch({numbers[1]}) after the resume, set_epoch({numbers[0]}) without the kill"
        return _at(epochs[1], "shuffle-epoch-not-restored", said)
    again = _position_of(parting.second, first.updates[: resumed.after])
    if again is not None:
        said = f"the batch of step {parting.step + 1} is that of step {again + 1} once more"
        return _at(saved, "loader-position-not-saved", said)
    moved = _draws(ours)
    if moved:
        return _at(saved, "generator-not-saved", "other batches come", *moved)
    return _at(saved, "data-order-not-restored")


def _position_of(update: Update, before: Sequence[Update]) -> int | None:
    """Return at which earlier step the first run had this step's batch."""
    name = "batch" if update.parts.get("batch") else "inputs"
    wanted = update.parts.get(name)
    return next((item.step for item in before if wanted and item.parts.get(name) == wanted), None)


def _draws(process: Process) -> list[str]:
    """Return which global generators moved between steps."""
    names = sorted({moment.facts["generator"] for moment in process.moments if moment.kind == "draw"})
    return [f"drawn from at each step: {', '.join(names)}"] if names else []


def _last(moments: Sequence[Moment], kind: str) -> Moment | None:
    return next((moment for moment in reversed(moments) if moment.kind == kind), None)


def _at(moment: Moment | None, name: str, *evidence: str) -> Finding:
    file, line = (moment.file, moment.line) if moment is not None else (None, None)
    return Finding(name=name, file=file, line=line, evidence=list(evidence), is_proved=True)
