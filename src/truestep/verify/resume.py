"""Why a run that was killed and resumed is not the one that was not.

Owns what a checkpoint lacks, as it shows in the first steps after the resume. Reads digests and moments only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from truestep.base.cells import line_names
from truestep.verify.causes import FoundCause
from truestep.verify.chains import Divergence, Resumed
from truestep.verify.lines import slice_from
from truestep.verify.lost import Lost
from truestep.verify.runs import Ran
from truestep.verify.streams import Split
from truestep.watch import Moment, Process, Update
from truestep.watch.evidence.facts.loading import EpochBegan, EpochSet, LoaderUsed
from truestep.watch.evidence.facts.passes import ParallelMade
from truestep.watch.evidence.facts.structure import FileLoaded, FileSaved
from truestep.watch.evidence.facts.surroundings import GeneratorSeeded
from truestep.watch.evidence.moment import F

_OPEN = ("state-not-saved", "end-not-restored", "data-order-not-restored")
"""What says that something was lost, and not what."""
_OF_PART = {
    "settings": "scheduler-not-saved",
    "buffers": "buffers-not-saved",
    "weights": "optimizer-not-saved",
    "state": "optimizer-not-saved",
    "kept": "kept-state-not-saved",
}
"""What a checkpoint usually lacks where this part of a step is the first that differs."""
_MAX_LINES = 8
_MAX_TOLD = 3


def explain(first: Ran, second: Ran, *, divergence: Divergence, resumed: Resumed) -> FoundCause:
    """Return what was not brought back."""
    ours, theirs = first.first, second.first
    assert ours is not None
    assert theirs is not None
    return _Case(ours=ours, theirs=theirs, divergence=divergence, after=resumed.after).explain()


@dataclass(frozen=True, kw_only=True)
class _Case:
    """The process of the first run, the one that was resumed, and where they diverge."""

    ours: Process
    theirs: Process
    divergence: Divergence
    after: int | None

    def explain(self) -> FoundCause:
        divergence = self.divergence
        if self.after is None:
            return self._at_save("model-not-saved")
        if divergence.first is None or divergence.second is None:
            return self._at_save("end-not-restored")
        if {"batch", "inputs"} & set(divergence.parts):
            return self._explain_data(divergence.second, self.after)
        if divergence.what in ("loss", "gradients"):
            wrapped = _last(self.theirs, ParallelMade)
            is_wrapped = wrapped is not None and wrapped.facts.what == "DistributedDataParallel"
            if divergence.what == "gradients" and is_wrapped:
                said = "batch, loss and weights before the step are the same on this process"
                return _at(wrapped, "bucket-rebuild", said)
            return self._explain_draws(self.after)
        return self._at_save(_OF_PART.get(divergence.parts[0], "state-not-saved"))

    def _explain_data(self, resumed: Update, after: int) -> FoundCause:
        """Other batches after the resume."""
        step = self.divergence.step
        epochs = [
            _last(process, EpochSet, until=last)
            for process, last in ((self.ours, step), (self.theirs, resumed.step))
        ]
        if epochs[0] and epochs[1] and epochs[0].facts.epoch != epochs[1].facts.epoch:
            numbers = [moment.facts.epoch for moment in epochs if moment is not None]
            said = f"set_epoch({numbers[1]}) after the resume, set_epoch({numbers[0]}) without the kill"
            return _at(epochs[1], "shuffle-epoch-not-restored", said)
        starts = _epoch_starts(self.ours, after)
        start = next((start for start in starts if _batch_of(start) == _batch_of(resumed)), None)
        if start is not None:
            said = f"step {step + 1} repeats the batch of step {start.step + 1}"
            return self._at_save("loader-position-not-saved", said)
        if self._drawn():
            return self._explain_draws(after)
        return self._at_save("data-order-not-restored")

    def _explain_draws(self, after: int) -> FoundCause:
        """Other numbers are drawn after the resume: a generator was not set back, or a loader moved it."""
        last = self.ours.updates[after - 1]
        drawn = self._drawn()
        restored = restoring(self.theirs, last)
        epochs = [moment for moment in self.theirs.of(EpochBegan) if moment.step == 0]
        later = [moment for moment in epochs if restored is not None and moment.at_s > restored.at_s]
        would_begin = any(moment.step == after for moment in self.ours.of(EpochBegan))
        if "torch" in drawn and later and not would_begin:
            said = f"this line restores its state after step {last.step + 1}"
            loader = f"a loader starts after that, at {line_names(later[0].file or '', [later[0].line or 0])}"
            return _at(restored, "generator-moved-after-restore", said, loader)
        signs = [f"generators used during training: {', '.join(sorted(drawn))}"] if drawn else []
        return self._at_save("generator-not-saved" if drawn else "state-not-saved", *signs)

    def _drawn(self) -> set[str]:
        """Return which global generators training draws from, and which differ after this step."""
        assert self.divergence.first is not None
        assert self.divergence.second is not None
        ours, theirs = (
            update.parts.get("generators", {}) for update in (self.divergence.first, self.divergence.second)
        )
        return {name for name in _draws(self.ours) if ours.get(name) != theirs.get(name)}

    def _loaded(self) -> Moment[Any] | None:
        return _last(self.theirs, FileLoaded)

    def _at_save(self, name: str, *evidence: str) -> FoundCause:
        """What a checkpoint lacks is told where it was saved, or else where it was loaded."""
        place = _last(self.ours, FileSaved) or self._loaded()
        return _at(place, name, *evidence)


def withdraw(
    finding: FoundCause, first: Process, *, divergence: Divergence, found: Split | None, lost: Sequence[Lost]
) -> None:  # limits: a name, and what speaks against it
    """Take back a name that experiments speak against; tell what else differs, and which lines made it.

    The generators were put back, and it still differs. A loader may have drawn its order long before.
    """
    if finding.name == "generator-not-saved" and not first.of(EpochBegan):
        is_data = bool({"batch", "inputs"} & set(divergence.parts))
        finding.name = "data-order-not-restored" if is_data else "state-not-saved"
        finding.evidence = ["with the generators put back, the resumed run still differs"]
    if finding.name not in _OPEN:
        return
    changed = [item for item in lost if item.has_changed and item.has_words]
    told = [item.words for item in changed if " items " not in item.ours]  # a length tells little
    finding.evidence += told[:_MAX_TOLD]
    if found is not None and found.first.file and found.first.line:
        lines = dict.fromkeys(item.line for item in slice_from(found.first.file, found.first.line))
        numbers = line_names(found.first.file, [*lines][:_MAX_LINES])
        finding.evidence.append(f"the first value that differs is made by {numbers} at most")


def restoring(process: Process, last: Update) -> Moment[GeneratorSeeded] | None:
    """Return where a resumed run sets torch's generator to the state in which the step before left it."""
    stood = last.parts.get("generators", {}).get("torch")
    seeded = [moment for moment in process.of(GeneratorSeeded) if moment.step == 0]
    return next((moment for moment in seeded if stood and moment.facts.digest == stood), None)


def has_workers(process: Process) -> bool:
    """Whether a loader has workers, whose generators nobody sees."""
    return any(moment.facts.num_workers for moment in process.of(LoaderUsed))


def _epoch_starts(process: Process, after: int) -> list[Update]:
    """Return, for each loader that was under way after so many updates, the first step of its epoch."""
    done = process.updates[after - 1].step + 1
    begun = {moment.facts.loader: moment.step for moment in process.of(EpochBegan) if moment.step < done}
    return [update for update in process.updates if update.step in begun.values()]


def _batch_of(update: Update) -> Any:
    """Return the digests of the step's batch, or else of what the model was given."""
    return update.parts.get("batch") or update.parts.get("inputs")


def _draws(process: Process) -> set[str]:
    """Return which global generators moved from one step to another."""
    states = [update.parts.get("generators", {}) for update in process.updates]
    return {name for one, other in pairwise(states) for name in one if one[name] != other.get(name)}


def _last(process: Process, kind: type[F], *, until: float = math.inf) -> Moment[F] | None:
    """Return the last moment of a kind, up to a step."""
    return next((moment for moment in reversed(process.of(kind)) if moment.step <= until), None)


def _at(moment: Moment[Any] | None, name: str, *evidence: str) -> FoundCause:
    file, line = (moment.file, moment.line) if moment is not None else (None, None)
    return FoundCause(name=name, file=file, line=line, evidence=list(evidence))
