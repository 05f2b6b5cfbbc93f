"""Why a run that was killed and resumed is not the one that was not.

Owns what a checkpoint lacks, as it shows in the first steps after the resume. Reads digests and moments only.
"""

from collections.abc import Sequence
from itertools import pairwise

from truestep.verify.causes import Finding
from truestep.verify.chains import Parting, Resumed
from truestep.verify.runs import Ran
from truestep.watch import Moment, Operation, Process, Update


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
        return _explain_draws(first, second, resumed=resumed)
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
    if _draws(first):
        return _explain_draws(first, second, resumed=resumed)
    return _at(saved, "data-order-not-restored")


def _explain_draws(first: Ran, second: Ran, *, resumed: Resumed) -> Finding:
    """Other numbers are drawn after the resume: nobody set the generator back, or it has moved since."""
    ours, theirs = first.first, second.first
    assert ours is not None
    assert theirs is not None
    assert resumed.after is not None
    stood = first.updates[resumed.after - 1].parts.get("generators", {}).get("torch")
    restored = next(
        (item for item in theirs.moments if item.kind == "seed" and item.value == stood and item.step == 0),
        None,
    )
    drawn = _draws(first)
    if restored is None or not drawn:
        saved = _last(ours.moments, "save") or _last(theirs.moments, "load")
        return _at(saved, "generator-not-saved" if drawn else "state-not-saved", *drawn)
    said = f"set back here to where it stood after step {first.updates[resumed.after - 1].step + 1}"
    begun = next(
        (
            item
            for item in theirs.moments
            if item.kind == "epoch" and item.step == 0 and item.at_s > restored.at_s
        ),
        None,
    )
    later = [f"a loader begins after that, at line {begun.line}"] if begun is not None else []
    return _at(restored, "generator-moved-after-restore", said, *later)


def drawn_by_dataset(process: Process) -> Operation | None:
    """Return the first draw of dataset code, seen in a run without workers; the loop's own are left out."""
    loop = {(item.file, item.line) for item in process.moments if item.kind in ("epoch", "batch")}
    return next(
        (
            item
            for item in process.operations
            if item.is_random and item.phase == "data" and item.file and (item.file, item.line) not in loop
        ),
        None,
    )


def has_workers(process: Process) -> bool:
    """Whether a loader has workers, whose generators nobody sees."""
    return any(moment.kind == "loader" and moment.facts["workers"] for moment in process.moments)


def _position_of(update: Update, before: Sequence[Update]) -> int | None:
    """Return at which earlier step the first run had this step's batch."""
    name = "batch" if update.parts.get("batch") else "inputs"
    wanted = update.parts.get(name)
    return next((item.step for item in before if wanted and item.parts.get(name) == wanted), None)


def _draws(ran: Ran) -> list[str]:
    """Return which global generators moved from one step to another."""
    states = [update.parts.get("generators", {}) for update in ran.updates]
    names = {name for one, other in pairwise(states) for name in one if one[name] != other.get(name)}
    return [f"drawn from while training: {', '.join(sorted(names))}"] if names else []


def _last(moments: Sequence[Moment], kind: str) -> Moment | None:
    return next((moment for moment in reversed(moments) if moment.kind == kind), None)


def _at(moment: Moment | None, name: str, *evidence: str) -> Finding:
    file, line = (moment.file, moment.line) if moment is not None else (None, None)
    return Finding(name=name, file=file, line=line, evidence=list(evidence))
