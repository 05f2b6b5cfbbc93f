"""What may have made two runs differ, from the evidence of both: suspects, the likeliest first.

Owns the way from the first operation that differs back to a line and a cause. Proof is left to experiments.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from truestep.verify.causes import EXPERIMENTS, FoundCause
from truestep.verify.lines import Statement, slice_from
from truestep.verify.runs import Ran
from truestep.verify.streams import Split, distance, split, writers
from truestep.watch import Moment, Operation, Process, Update
from truestep.watch.evidence.facts.loading import BatchFetched, EpochBegan
from truestep.watch.evidence.facts.passes import CompileCalled, ForwardPass
from truestep.watch.evidence.facts.surroundings import GeneratorSeeded, SourceRead

_ONLY_WORKERS = "only the number of workers was changed, and this line draws in them"

Readings = dict[tuple[str, int], list[tuple[str, str, object]]]
"""By the user's line: what was read there, from where, and what it gave, in order."""

_OF_SOURCE = {
    "clock": ("seeded-from-time", "clock-branch"),
    "environment": ("environment-branch", "environment-branch"),
    "listing": ("listing-order", "listing-order"),
    "pid": ("seeded-from-system", None),
    "entropy": ("seeded-from-system", "drawn-from-system"),
    "random": ("unseeded-random", "unseeded-random"),
    "numpy": ("unseeded-numpy", "unseeded-numpy"),
}
"""For each source: the cause where its line seeds something, and the cause elsewhere."""


_DATES, _DATETIME = {"now", "utcnow", "today"}, {"datetime", ".datetime"}
_OUTSIDE = ("aten.lift_fresh", "aten.set_.")


def is_from_outside(first: Ran, second: Ran, *, step: int) -> bool:
    """Whether what differs first was handed to torch by Python: no operation of torch's made it."""
    found = first_difference(first.first, second.first, step=step)
    return found is not None and found.first.name.startswith(_OUTSIDE)


def first_difference(ours: Process | None, theirs: Process | None, *, step: int) -> Split | None:
    """Return the first operation that differs in a step, or else in all that was looked at."""
    if ours is None or theirs is None:
        return None
    return split(_of(ours, step), _of(theirs, step)) or split(ours.operations, theirs.operations)


def blind_cause(name: str, *runs: Ran, step: int) -> FoundCause:
    """Return a cause that nothing but an experiment speaks for, where the first difference shows.

    What the evidence spoke for stands at lines of its own: none of them is told for this cause.
    """
    finding = FoundCause(name=name)
    ours, theirs = (ran.first for ran in runs)
    found = first_difference(ours, theirs, step=step)
    if found is not None:
        assert ours is not None
        assert theirs is not None
        finding = _at(found.first, name)
        _add_place([finding], found, apart=distance(ours, theirs, found=found))
    return finding


def suspects(first: Ran, second: Ran, *, step: int) -> list[FoundCause]:
    """Return the causes that the evidence of two looked-at runs speaks for, the likeliest first.

    `step` is where they diverge. What differs before it and leaves no trace in a step is passed over first.
    """
    ours, theirs = first.first, second.first
    if ours is None or theirs is None:
        return []
    compiled = _compiled_once(ours, theirs)
    if compiled is not None:
        return [compiled]
    found = first_difference(ours, theirs, step=step)
    case = _Case(ours, theirs, found=found)
    findings = [*case.suspects(second.way.kind, step=step)]
    if found is not None:
        _add_place(findings, found, apart=distance(ours, theirs, found=found))
    return _without_repeats(findings)


def _of(process: Process, step: int) -> list[Operation]:
    return [operation for operation in process.operations if operation.step == step]


def can_matter(frozen: str, runs: tuple[Ran, Ran]) -> bool:
    """Whether a script may depend on what an experiment holds still, by what was seen in two runs of it."""
    ours, theirs = runs[0].first, runs[1].first
    if ours is None or theirs is None:
        return False
    reading = EXPERIMENTS[frozen].reading
    if reading is not None:
        return any(what == reading for read in _readings(ours).values() for what, _, _ in read)
    if frozen in ("random", "numpy"):
        states = [[_state(update, frozen) for update in process.updates] for process in (ours, theirs)]
        return states[0] != states[1] or any(seed.facts.how == "fresh" for seed in _seeds(ours, frozen))
    return True


def _state(update: Update, generator: str) -> Any:
    return update.parts.get("generators", {}).get(generator)


def drawn_by_dataset(process: Process) -> list[Operation]:
    """Return the draws of dataset code in a run without workers; what the loop itself draws is left out."""
    loop = {(moment.file, moment.line) for moment in process.of(EpochBegan, BatchFetched)}
    return [
        operation
        for operation in process.operations
        if operation.is_random
        and operation.phase == "data"
        and operation.file
        and (operation.file, operation.line) not in loop
    ]


def drawn_in_dataset(first: Ran, second: Ran) -> list[FoundCause]:
    """Return draws that dataset code makes: seen in the run without workers, unseen in the one with some."""
    alone, other = sorted((first, second), key=lambda ran: len(ran.first.operations) if ran.first else 0)[
        ::-1
    ]
    if alone.first is None or other.first is None:
        return []
    findings = []
    for operation in drawn_by_dataset(alone.first):
        name = "dataset-generator" if operation.has_generator else "worker-count"
        found = FoundCause(name=name, file=operation.file, line=operation.line, operation=operation.name)
        findings.append(replace(found, evidence=[_ONLY_WORKERS], is_proved=True))
    unseen = _readings(other.first)
    for (file, line), read in _readings(alone.first).items():
        if (file, line) not in unseen and any(what in ("random", "numpy") for what, _, _ in read):
            found = FoundCause(name="worker-count", file=file, line=line, evidence=[_ONLY_WORKERS])
            findings.append(replace(found, is_proved=True))
    return _without_repeats(findings)


class _Case:
    """Two processes, and what differs between them."""

    def __init__(self, ours: Process, theirs: Process, *, found: Split | None) -> None:
        self._ours = ours
        self._theirs = theirs
        self._found = found
        self._read = _readings(ours)
        self._differing = _differing(_readings(ours), _readings(theirs))

    def suspects(self, kind: str, *, step: int) -> Iterator[FoundCause]:
        found = self._found
        if found is None:
            yield from self._taken_in(step)
        elif kind == "threads":
            finding = _at(found.first, "thread-count", is_proved=True)
            yield replace(finding, evidence=["only the number of threads was changed"])
            return
        else:
            yield from self._from_split(found)
        for (file, line), kinds in self._differing.items():  # whatever else was read: less likely
            for what in kinds:
                name = _OF_SOURCE[what][1]
                if name is not None:
                    yield FoundCause(name=name, file=file, line=line)

    def _from_split(self, found: Split) -> Iterator[FoundCause]:
        operation = found.first
        if found.how == "result":
            yield from self._made_by(operation)
        elif found.how == "input":
            yield from self._given(found)
        yield from self._read_before(operation.file, operation.line)
        if found.second is not None and found.second.line != operation.line:
            yield from self._read_before(found.second.file, found.second.line)

    def _taken_in(self, step: int) -> Iterator[FoundCause]:
        """The two were the same this time: read back from where the step takes its data."""
        for moment in self._ours.of(BatchFetched, ForwardPass):
            if moment.step == step:
                yield from self._read_before(moment.file, moment.line)

    def _made_by(self, operation: Operation) -> Iterator[FoundCause]:
        """Same inputs, another result: it draws, or it has no order."""
        if not operation.is_random:
            is_custom = operation.phase == "backward" and "." not in operation.name
            yield _at(operation, "custom-function" if is_custom else "racy-operation")
            return
        if operation.has_generator:
            return  # who seeded it, is found by reading back
        seeds = [_seeds(process, "torch") for process in (self._ours, self._theirs)]
        if not seeds[0] and not seeds[1]:
            yield _at(operation, "unseeded-torch")
        for ours, theirs in zip(*seeds, strict=False):
            if ours.facts.seed != theirs.facts.seed:
                yield from self._read_before(ours.file, ours.line)
                yield FoundCause(name="seeded-from-system", file=ours.file, line=ours.line)

    def _given(self, found: Split) -> Iterator[FoundCause]:
        """Other inputs: by their memory we see who made them."""
        for place in found.inputs:
            for writer in writers(self._ours.operations, found.first, place=place):
                if writer.is_uninitialised:
                    yield _at(writer, "uninitialised-memory")
                elif writer.thread:
                    yield self._from_thread(writer)

    def _from_thread(self, writer: Operation) -> FoundCause:
        """Threads that made the same tensors gave them in another order; else they met in one."""
        made = [_made_in_threads(process.operations) for process in (self._ours, self._theirs)]
        if made[0] == made[1]:
            return FoundCause(name="thread-order", file=writer.outer_file, line=writer.outer_line)
        return _at(writer, "thread-race")

    def _read_before(self, file: str | None, line: int | None) -> Iterator[FoundCause]:
        """Read back from a line, to where something was read or drawn that differs."""
        if file is None or line is None:
            return
        is_seed = False
        for number, statement in enumerate(slice_from(file, line)):
            is_seed = statement.seeds if number == 0 else is_seed
            yield from self._read_at(file, statement, is_seed=is_seed or statement.seeds)
            if statement.calls & _DATES and statement.uses & _DATETIME:  # closed types: read from the source
                name = "seeded-from-time" if is_seed or statement.seeds else "clock-branch"
                yield FoundCause(name=name, file=file, line=statement.line)
            if statement.makes_set:
                yield FoundCause(name="set-order", file=file, line=statement.line)
                yield FoundCause(name="object-set-order", file=file, line=statement.line)
            if "hash" in statement.calls:
                yield FoundCause(name="string-hash", file=file, line=statement.line)

    def _read_at(self, file: str, statement: Statement, *, is_seed: bool) -> Iterator[FoundCause]:
        for line in range(statement.line, statement.end_line + 1):
            for what in self._differing.get((file, line), ()):
                name = _OF_SOURCE[what][0 if is_seed else 1]
                if name is not None:
                    yield FoundCause(name=name, file=file, line=line)
            for moment in self._ours.of(GeneratorSeeded):
                if (moment.file, moment.line) == (file, line):
                    yield from _fresh(moment)


def _fresh(moment: Moment[GeneratorSeeded]) -> Iterator[FoundCause]:
    """A generator that was made or seeded without a number."""
    if moment.facts.how == "fresh":
        yield FoundCause(name=f"unseeded-{moment.facts.generator}", file=moment.file, line=moment.line)


def _compiled_once(ours: Process, theirs: Process) -> FoundCause | None:
    calls = [process.of(CompileCalled) for process in (ours, theirs)]
    if bool(calls[0]) == bool(calls[1]):
        return None
    moment = (calls[0] or calls[1])[0]
    said = ["the other run does not compile"]
    return FoundCause(name="compiled-once", file=moment.file, line=moment.line, evidence=said, is_proved=True)


def _made_in_threads(operations: Sequence[Operation]) -> Counter[tuple[str, ...]]:
    return Counter(
        (operation.name, *(out.digest for out in operation.outs))
        for operation in operations
        if operation.thread
    )


def _seeds(process: Process, generator: str) -> list[Moment[GeneratorSeeded]]:
    return [moment for moment in process.of(GeneratorSeeded) if moment.facts.generator == generator]


def _readings(process: Process) -> Readings:
    found: Readings = defaultdict(list)
    for moment in process.of(SourceRead):
        if moment.file is not None and moment.line is not None:
            name = moment.facts.name
            what = "numpy" if name == "numpy.random.default_rng" else moment.facts.what
            found[moment.file, moment.line].append((what, name, moment.facts.result))
    return found


def _differing(ours: Readings, theirs: Readings) -> dict[tuple[str, int], list[str]]:
    """Return by line what was read there with another result, in the order of reading."""
    found = {}
    for place in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(place, []), theirs.get(place, [])
        kinds = [a[0] for a, b in zip(one, other, strict=False) if a != b]
        if len(one) != len(other):
            longer = max(one, other, key=len)
            kinds += [what for what, _, _ in longer[min(len(one), len(other)) :]]
        if kinds:
            # A generator made without a seed asks the system for one: the generator is what to tell.
            found[place] = sorted(dict.fromkeys(kinds), key=lambda kind: kind == "entropy")
    return found


def _at(operation: Operation, name: str, *, is_proved: bool = False) -> FoundCause:
    file, line = place_of(operation)
    return FoundCause(name=name, file=file, line=line, is_proved=is_proved)


def place_of(operation: Operation) -> tuple[str | None, int | None]:
    """Return the line to tell: of a backward pass the line of the operation that it is the backward of."""
    if operation.forward_line is not None:
        return operation.forward_file, operation.forward_line
    return operation.file, operation.line


def _add_place(findings: list[FoundCause], found: Split, *, apart: str | None) -> None:
    for finding in findings:
        finding.operation = finding.operation or found.first.name
        finding.module = finding.module or found.first.module or None
        finding.distance = apart


def _without_repeats(findings: list[FoundCause]) -> list[FoundCause]:
    kept: dict[tuple[str, str | None, int | None], FoundCause] = {}
    for finding in findings:
        kept.setdefault((finding.name, finding.file, finding.line), finding)
    return list(kept.values())
