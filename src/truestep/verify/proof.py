"""Finding a cause and proving it: the two runs once more with every operation noted, then experiments.

Owns which steps are looked at and which experiment is made. An experiment holds one thing still in some runs:
if they are the same, a control run without it is not, and chance is ruled out, it is the cause.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from truestep.base.cells import line_names
from truestep.verify import chains
from truestep.verify.causes import CAUSES, EXPERIMENTS, FoundCause
from truestep.verify.lines import slice_from
from truestep.verify.runs import Ran, Runner
from truestep.verify.suspects import (
    blind_cause,
    can_matter,
    drawn_in_dataset,
    is_from_outside,
    suspects,
)
from truestep.verify.ways import Way
from truestep.watch import DIGESTS, Plan
from truestep.watch.evidence.facts.loading import BatchFetched
from truestep.watch.evidence.facts.passes import ForwardPass

_FEW = 12
"""Steps up to this one are looked at from the beginning; later ones by themselves."""
_MAX_OPERATIONS = 100_000
"""How many are looked at together, if the step at which two runs diverge is another each time."""
_MAX_TRIES = 4
_MAX_SUSPECTS = 10
_MORE_STEPS = 3
_MAX_CHANCE = 0.01
"""How likely runs may be the same by chance, in any of the experiments, for a cause to be called proved."""
_MAX_AGREED = 24
_MAX_LINES = 8
_ALLOCATORS = ("malloc", "malloc_debug")
"""Of Python: with each, objects are elsewhere."""
_GENERATORS = ("torch", "numpy", "random")
"""What scripts often leave unseeded together: then only all of them explain a difference."""


@dataclass(kw_only=True)
class Proof:
    """One difference between the first way and another, to be explained."""

    runner: Runner
    base: Way
    on_status: Callable[[str], None]
    on_likely: Callable[[FoundCause], None] = lambda _finding: None
    """Hears of the likeliest cause before experiments are made."""
    has_experiments: bool = True
    _step: int = 0
    _what: str = ""
    _num_compared: int = 1
    """How often two runs were compared in which nothing is held: once, before this was asked."""
    _num_agreed: int = 0
    """How often those were the same."""
    _control: Ran | None = None
    _outcomes: dict[tuple[str, ...], int] = field(default_factory=dict)
    _refuted: set[tuple[str, ...]] = field(default_factory=set)
    """What was held still in runs that differ nevertheless."""

    def find(self, way: Way, *, divergence: chains.Divergence) -> FoundCause:
        """Return the cause of a difference, proved where an experiment can."""
        self._step, self._what = divergence.step, divergence.what
        first, second, step = self._look(way, divergence.step)
        if way.kind == "workers":
            drawn = drawn_in_dataset(first, second)
            if drawn:
                return drawn[0]
        found = suspects(first, second, step=step)
        for finding in found:
            if way.kind == "environment" and finding.name == "environment-branch":
                finding.is_proved = True
                finding.evidence.append("only this variable was changed")
            if finding.is_proved:
                return finding
        if way.kind in ("first", "again", "killed") and self.has_experiments:
            if found:
                self.on_likely(found[0])
            proved = self._try(found[:_MAX_SUSPECTS])
            proved = proved or self._try_all(first, second)
            if proved is not None:
                return proved
        return self._likeliest(found) or _with_candidates(unknown_cause(divergence), first, step=step)

    def _likeliest(self, found: list[FoundCause]) -> FoundCause | None:
        """Return the first suspect that no experiment speaks against, or else the first."""
        for finding in found:
            if not all((frozen,) in self._refuted for frozen in CAUSES[finding.name].frozen_sources):
                return finding
        return found[0] if found else None

    def _look(self, way: Way, step: int) -> tuple[Ran, Ran, int]:
        """Run both with operations noted, and return the step at which they diverge this time.

        A race parts elsewhere each time: then more steps are looked at.
        """
        window = (0 if step < _FEW else step, step)
        first, second, divergence = self._look_at(way, window)
        if divergence is None or not window[0] <= divergence.step <= window[1]:
            last = step if divergence is None else max(step, divergence.step)
            num_seen = len(first.first.operations) if first.first is not None else 0
            num_each = num_seen / (window[1] + 1 - window[0])
            is_small = num_each * (last + 1) <= _MAX_OPERATIONS
            step = last if divergence is None else divergence.step
            first, second, divergence = self._look_at(way, (0, last) if is_small else (step, step))
        return first, second, step if divergence is None else divergence.step

    def _look_at(self, way: Way, window: tuple[int, int]) -> tuple[Ran, Ran, chains.Divergence | None]:
        """Run both with the operations of some steps noted; what repeats by chance is tried again."""
        steps = f"step {window[1] + 1}" if window[0] == window[1] else f"steps up to {window[1] + 1}"
        self.on_status(f"comparing the operations of {steps}")
        plan = Plan(digests=DIGESTS, operations=window, sources=True, steps=window[1] + 1)
        first = self.runner.run(replace(self.base, kind="first"), plan=plan)
        for _ in range(_MAX_TRIES):
            second = self.runner.run(way, plan=plan)
            divergence = chains.compare(first, second, outcome=way.outcome)
            self._count(is_same=divergence is None)
            if divergence is not None:
                break
        return first, second, divergence

    def _count(self, *, is_same: bool) -> None:
        self._num_compared += 1
        self._num_agreed += is_same

    def _try(self, found: list[FoundCause]) -> FoundCause | None:
        frozen_sources = {frozen for finding in found for frozen in CAUSES[finding.name].frozen_sources}
        for finding in found:
            for frozen in CAUSES[finding.name].frozen_sources:
                num_runs = self._num_same_with(frozen, limit=_MAX_CHANCE / len(frozen_sources))
                if num_runs:
                    return _proved(finding, frozen, num_runs=num_runs)
        by_generator = {
            frozen: finding
            for finding in reversed(found)
            for frozen in CAUSES[finding.name].frozen_sources
            if frozen in _GENERATORS
        }
        return self._try_together(by_generator, limit=_MAX_CHANCE / max(1, len(frozen_sources)))

    def _try_together(self, by_generator: dict[str, FoundCause], *, limit: float) -> FoundCause | None:
        """Freeze several generators at once: a script that seeds nothing needs all of them seeded."""
        frozen = tuple(name for name in _GENERATORS if name in by_generator)
        num_runs = self._num_same_with(*frozen, limit=limit) if len(frozen) > 1 else 0
        if not num_runs:
            return None
        first, *others = (by_generator[name] for name in frozen)
        return _proved(replace(first, others=others), *frozen, num_runs=num_runs)

    def _try_all(self, first: Ran, second: Ran) -> FoundCause | None:
        """Make every experiment that can matter: one of them may tell what the evidence did not."""
        causes = {frozen: item.cause for frozen, item in EXPERIMENTS.items() if item.cause is not None}
        causes = {frozen: cause for frozen, cause in causes.items() if can_matter(frozen, (first, second))}
        if self._what == "batch" or is_from_outside(first, second, step=self._step):
            # Other algorithms use other memory and time: runs may be the same for what happens to be there.
            causes.pop("algorithms")
        for frozen, cause in causes.items():
            num_runs = self._num_same_with(frozen, limit=_MAX_CHANCE / len(causes))
            if num_runs:
                finding = blind_cause(cause, first, second, step=self._step)
                return _proved(finding, frozen, num_runs=num_runs)
        return None

    def _num_same_with(self, *frozen: str, limit: float) -> int:
        """Return how many runs were the same with something held still, if that is the cause; else 0.

        They are as many as it takes to rule out chance, and a run without it, made after them, differs.
        """
        if frozen not in self._outcomes:
            self.on_status(f"runs with {_words(frozen)}")
            self._outcomes[frozen] = self._experiment(frozen, limit)
        return self._outcomes[frozen]

    def _experiment(self, frozen: tuple[str, ...], limit: float) -> int:
        way = replace(self.base, kind="again", frozen=frozen)
        first = self._run(way)
        num_agreed, has_control = 0, False
        while num_agreed <= _MAX_AGREED and first.code == 0 and first.updates:
            # A control that is still to come counts as one that differs: if it does not, this is asked again.
            num_compared = self._num_compared + (not has_control)
            if ((self._num_agreed + 1) / (num_compared + 2)) ** num_agreed >= limit:
                again = self._run(way)
                if again.code != 0:
                    return 0
                if chains.compare(first, again, outcome=way.outcome) is not None:
                    # Addresses cannot always be held: that they differ speaks against nothing.
                    self._refuted |= {frozen} - {("addresses",)}
                    return 0
                num_agreed += 1
            elif has_control:
                if "hash" in frozen and self._moves_with_memory(first, way):
                    self._refuted.add(frozen)
                    return 0
                return num_agreed + 1
            else:
                has_control = self._differs_without()
        return 0

    def _moves_with_memory(self, first: Ran, way: Way) -> bool:
        """Whether a run differs by where Python puts its objects, though hashes of strings are held.

        Other hashes make other tables, and those move all addresses: so the same hashes alone prove nothing.
        """
        for allocator in _ALLOCATORS:
            moved = replace(way, environment={**way.environment, "PYTHONMALLOC": allocator})
            again = self._run(moved)
            if again.code == 0 and chains.compare(first, again, outcome=way.outcome) is not None:
                return True
        return False

    def _differs_without(self) -> bool:
        """Whether a run in which nothing is held differs from one before."""
        way = replace(self.base, kind="again")
        self._control = self._control or self._run(way)
        divergence = chains.compare(self._control, self._run(way), outcome=way.outcome)
        self._count(is_same=divergence is None)
        return divergence is not None

    def _run(self, way: Way) -> Ran:
        plan = Plan(digests=DIGESTS, steps=self._step + 1 + _MORE_STEPS)
        return self.runner.run(way, plan=plan)


def unknown_cause(divergence: chains.Divergence) -> FoundCause:
    """Return what can be said without a suspect: the line of the optimizer's step."""
    update = divergence.first or divergence.second
    file, line = (update.file, update.line) if update is not None else (None, None)
    return FoundCause(name="unknown", file=file, line=line)


def _with_candidates(finding: FoundCause, ran: Ran, *, step: int) -> FoundCause:
    """Add which lines could have made what a step takes in, as far as reading the script tells."""
    moments = ran.first.of(BatchFetched, ForwardPass) if ran.first is not None else []
    place = next(((item.file, item.line) for item in moments if item.step == step), None)
    if place is None or place[0] is None or place[1] is None:
        return finding
    lines = dict.fromkeys(statement.line for statement in slice_from(place[0], place[1]))
    numbers = line_names(place[0], list(lines)[:_MAX_LINES])
    finding.file, finding.line = place
    finding.evidence.append(f"it differs where the step takes in its data; made by {numbers} at most")
    return finding


def _words(frozen: Sequence[str]) -> str:
    return (
        EXPERIMENTS[frozen[0]].words
        if len(frozen) == 1
        else f"the generators of {' and '.join(frozen)} seeded"
    )


def _proved(finding: FoundCause, *frozen: str, num_runs: int) -> FoundCause:
    finding.is_proved = True
    finding.evidence.append(f"with {_words(frozen)}, {num_runs} runs are the same; a run without it differs")
    return finding
