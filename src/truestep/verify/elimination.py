"""What a checkpoint lacks, by elimination: the killed run is resumed again, with one thing put back.

Owns the experiments. A thing is put back as it was in the run that was not killed, when the first step after
the resume begins. If all that follows is then the same, that thing was lost: only this is called proved.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from truestep.verify import chains, lost, resume, streams
from truestep.verify.causes import FoundCause
from truestep.verify.lines import assigning
from truestep.verify.lost import Lost
from truestep.verify.runs import Ran, Runner, Settings, chain_plan
from truestep.verify.ways import Way
from truestep.watch import DIGESTS, Moment, Plan, Process, Update
from truestep.watch.evidence.facts.structure import FileSaved, StateLoaded

_PUT = "truestep.watch.control.putting:watch"
_KEPT_FILE = "kept.pickle"
_MAX_THINGS = 64
_MAX_TRIES = 24
_CAUSE_OF = {
    "optimizer": "optimizer-not-saved",
    "scheduler": "scheduler-not-saved",
    "buffers": "buffers-not-saved",
    "module": "kept-state-not-saved",
}
"""By the kind of what was lost. All else are variables, also a generator of the script's own."""
_GENERATOR_LOST, _MOVED = "generator-not-saved", "generator-moved-after-restore"
_TORCH = f"{lost.GENERATOR}torch"


@dataclass(kw_only=True)
class Elimination:
    """A run that was killed and resumed, and differs from the one that was not."""

    runner: Runner
    base: Way
    first: Ran
    killed: Ran
    divergence: chains.Divergence
    resumed: chains.Resumed
    steps: int | None
    arguments: tuple[str, ...]
    on_status: Callable[[str], None]
    _source: Path | None = None
    _again: Ran | None = None
    _outcomes: dict[frozenset[str], bool] = field(default_factory=dict)

    def refine(self, finding: FoundCause) -> None:
        """Name the first operation that differs, and what was lost if putting it back repairs the run."""
        first, found = self._look(finding)
        if first is None or self._again is None or self._again.first is None:
            return
        runs = (first, self._again.before_kill[0], self._again.first)
        candidates = lost.find(*runs, step=self._step)
        if self.base.processes not in (None, 1) or not self.resumed.after:
            return
        smallest = self._proved_with(candidates)
        if smallest:
            self._tell(finding, smallest)
        else:
            resume.withdraw(finding, first, divergence=self.divergence, found=found, lost=candidates)

    @property
    def _step(self) -> int:
        """The first step after the resume, counted in the run that was not killed."""
        after, updates = self.resumed.after, self.first.updates
        return updates[after].step if after and after < len(updates) else 0

    def _look(self, finding: FoundCause) -> tuple[Process | None, streams.Split | None]:
        """Run both once more with that step looked at, and with what they keep written down."""
        updates = (self.divergence.first, self.divergence.second)
        steps = [update.step if update is not None else 0 for update in updates]
        self.on_status(f"comparing the operations of step {steps[0] + 1}")
        plans = [
            Plan(digests=DIGESTS, operations=(step, step), steps=max(step, last) + 1)
            for step, last in zip(steps, (self._step, 0), strict=True)
        ]
        kept: Settings = ((_PUT, {"steps": [0, self._step]}),)
        first = self.runner.run(self.base, plan=replace(plans[0], settings=kept)).first
        assert self.runner.folder is not None
        self._source = self.runner.folder / _KEPT_FILE
        at = first.begun.get(self._step, {}).get("at") if first is not None else None
        kept = ((_PUT, {"steps": [self._step], "at": at}),)
        self._again = again = self.runner.run(
            self.killed.way,
            plan=replace(plans[1], settings=kept),
            kill_at=self.resumed.kill_at,
            resume_arguments=self.arguments,
            resumed_settings=((_PUT, {"steps": [0], "at": at}),),
        )
        found = None
        if first is None or again.first is None or None in updates:
            return first, None
        if finding.operation is None and not self.divergence.is_kept:
            found = streams.split_steps(first.operations, again.first.operations)
        if found is not None:
            finding.operation, finding.module = found.first.name, found.first.module or None
            finding.distance = streams.distance(first, again.first, found=found)
        return first, found

    def _proved_with(self, candidates: list[Lost]) -> list[Lost]:
        """Return what repairs the run when it is put back, if a run with nothing put back differs again."""
        smallest = self._search(candidates)
        return smallest if smallest and not self._experiment(frozenset()) else []

    def _search(self, candidates: list[Lost]) -> list[Lost]:
        """Return the smallest set of things that repairs the run; nothing if none is found."""
        changed = [item for item in candidates if item.has_changed][:_MAX_THINGS]
        others = [item for item in candidates if not item.has_changed and item.is_there]
        if self._repairs(changed):
            return self._minimal(changed)
        for item in [*others, *changed]:  # some may be where to begin: only one at a time
            if self._repairs([item]):
                return [item]
        for item in others:
            if self._repairs([*changed, item]):
                return self._minimal([*changed, item])
        return []

    def _minimal(self, items: list[Lost]) -> list[Lost]:
        """Return a part of a set that repairs the run, of which nothing can be left out."""
        if len(items) == 1:
            return items
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            if self._repairs(half):
                return self._minimal(half)
        for item in items:
            rest = [other for other in items if other is not item]
            if self._repairs(rest):
                return self._minimal(rest)
        return items

    def _repairs(self, items: Sequence[Lost]) -> bool:
        """Whether the resumed run is the same as the first one, with some things put back."""
        names = frozenset(item.name for item in items)
        if not names or (names not in self._outcomes and len(self._outcomes) >= _MAX_TRIES):
            return False
        if names not in self._outcomes:
            self._outcomes[names] = self._experiment(names)
        return self._outcomes[names]

    def _experiment(self, names: frozenset[str]) -> bool:
        assert self._again is not None
        assert self._again.first is not None
        shown = next(iter(names)) if len(names) == 1 else f"{len(names) or 'no'} things"
        self.on_status(f"resuming with {shown} put back")
        begun = self._again.first.begun[0]
        asked = {
            "steps": [0],
            "at": begun["at"],
            "count": begun["count"],
            "names": sorted(names),
            "source": str(self._source),
        }
        plan = replace(chain_plan(self.steps), settings=((_PUT, asked),))
        ran = self.runner.resume(self._again, plan=plan, resume_arguments=self.arguments)
        if ran.code != 0 or ran.first is None or any("a step begins" in text for text in ran.first.troubles):
            return False
        before = self.killed.before_kill[0].updates[: self.resumed.after]
        whole = as_far_as(self.first, [*before, *ran.updates])
        outcome = self.killed.way.outcome
        divergence = chains.diverge(self.first.updates, whole, outcome=outcome, is_resumed=True)
        return divergence is None and chains.compare_ends(self.first, ran, outcome=outcome) is None

    def _tell(self, finding: FoundCause, smallest: list[Lost]) -> None:
        """Let a finding name what was lost."""
        put = " and ".join(map(_shown, smallest))
        kinds = {item.kind for item in smallest}
        if {"optimizer", "scheduler"} <= kinds and self._has_loaded("optimizer"):
            # A scheduler that starts over has changed the rate of the optimizer, which was restored.
            smallest = [item for item in smallest if item.kind != "optimizer"]
        causes = dict.fromkeys(map(_cause_of, smallest))
        is_known = finding.name == "end-not-restored"
        moved = self._moved() if [item.name for item in smallest] == [_TORCH] else None
        finding.others = [] if is_known else [FoundCause(name=name) for name in [*causes][1:]]
        if not is_known:
            finding.name = _MOVED if moved is not None else next(iter(causes))
        finding.variables = [item.name for item in smallest if item.kind != "closure"]
        finding.kinds = {item.name: item.kind for item in smallest}
        finding.file, finding.line = (
            self._place(finding, smallest[0]) if moved is None else (moved.file, moved.line)
        )
        proof = (
            f"with {put} put back as without the kill, the resumed run is the same; without it, it differs"
        )
        finding.evidence = [proof, *(item.words for item in smallest[:3] if item.has_words)]
        finding.is_proved = True

    def _moved(self) -> Moment[Any] | None:
        """Return where torch's generator was restored, if it stood elsewhere when the step began."""
        process = self._again.first if self._again is not None else None
        if process is None or not self.resumed.after:
            return None
        last = self.first.updates[self.resumed.after - 1]
        began = process.begun.get(0, {}).get("generators", {}).get("torch")
        stood = last.parts.get("generators", {}).get("torch")
        return resume.restoring(process, last) if began != stood else None

    def _has_loaded(self, what: str) -> bool:
        process = self._again.first if self._again is not None else None
        return process is not None and any(moment.facts.what == what for moment in process.of(StateLoaded))

    def _place(self, finding: FoundCause, item: Lost) -> tuple[str | None, int | None]:
        """Return the line that changes what was lost; of states the line that saves the others."""
        assert self._again is not None
        assert self._again.first is not None
        saves: list[Any] = self.first.first.of(FileSaved) if self.first.first is not None else []
        saved = (saves[-1].file, saves[-1].line) if saves else (finding.file, finding.line)
        if _cause_of(item) != "variable-not-saved":
            return saved
        at = self._again.first.begun[0]["at"]
        for file in dict.fromkeys([at[0] if at else None, finding.file, saved[0]]):
            line = assigning(file, item.name.split("."))
            if line is not None:
                return file, line
        return saved


def _shown(item: Lost) -> str:
    name = f"`{item.name.removeprefix(lost.GENERATOR)}`"
    return f"the generator of {name}" if item.is_global_generator else name


def _cause_of(item: Lost) -> str:
    if item.is_global_generator:
        return _GENERATOR_LOST
    return _CAUSE_OF.get(item.kind, "variable-not-saved")


def as_far_as(first: Ran, updates: list[Update]) -> list[Update]:
    """Return a resumed run's updates, as many as the first run made if that one was ended early."""
    was_ended = first.first is not None and first.first.ended == "stopped"
    return updates[: len(first.updates)] if was_ended else updates
