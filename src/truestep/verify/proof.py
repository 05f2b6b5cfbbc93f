"""Finding a cause and proving it: the two runs once more with every operation noted, then experiments.

Owns which steps are looked at and which experiment is made. An experiment holds one thing still in both runs:
if they are the same then, and were not before, it is the cause.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from truestep.verify import chains
from truestep.verify.causes import CAUSES, Finding
from truestep.verify.runs import Ran, Runner
from truestep.verify.suspects import drawn_in_dataset, suspects
from truestep.verify.ways import Way
from truestep.watch import DIGESTS, Plan

_FEW = 12
"""Steps up to this one are looked at from the beginning; later ones by themselves."""
_MAX_TRIES = 4
_MAX_SUSPECTS = 10
_MORE_STEPS = 3
_WORDS = {
    "torch": "torch's generator seeded",
    "numpy": "NumPy's generator seeded",
    "random": "the generator of `random` seeded",
    "hash": "PYTHONHASHSEED=0",
    "addresses": "addresses that are not random",
    "clock": "a clock that stands still",
    "entropy": "the system's entropy replaced by fixed bytes",
    "listing": "listings sorted",
    "threads": "Python threads one after the other",
    "algorithms": "torch.use_deterministic_algorithms(True)",
    "intraop": "one thread for torch",
}
_WITH = {"addresses": ("addresses", "hash")}
"""What must be held too: what lies where depends on the order in which it is made."""
_BLIND = ("torch", "random", "numpy", "hash", "threads", "listing", "clock", "algorithms", "addresses")
"""In which order experiments are made when nothing is suspected: the usual causes first."""
_OF_HOLD = {
    "torch": "unseeded-torch",
    "numpy": "unseeded-numpy",
    "random": "unseeded-random",
    "hash": "set-order",
    "addresses": "unordered-sum",
    "clock": "clock-branch",
    "listing": "listing-order",
    "threads": "thread-order",
    "algorithms": "racy-operation",
}


@dataclass(kw_only=True)
class Proof:
    """One difference between the first way and another, to be explained."""

    runner: Runner
    base: Way
    tell: Callable[[str], None]
    _step: int = 0
    _outcomes: dict[str, bool] = field(default_factory=dict)

    def find(self, way: Way, *, parting: chains.Parting) -> Finding:
        """Return the cause of a difference, proved where an experiment can."""
        self._step = parting.step
        first, second = self._look(way, parting.step)
        if way.kind == "workers":
            drawn = drawn_in_dataset(first, second)
            if drawn:
                return drawn[0]
        found = suspects(first, second)
        for finding in found:
            if way.kind == "environment" and finding.name == "environment-branch":
                finding.is_proved = True
                finding.evidence.append("nothing but this variable was changed")
            if finding.is_proved:
                return finding
        if way.kind in ("first", "again", "killed"):
            proved = self._try(found[:_MAX_SUSPECTS]) or self._try_all(found)
            if proved is not None:
                return proved
        if found:
            return found[0]
        update = parting.first or parting.second
        place = (update.file, update.line) if update is not None else (None, None)
        return Finding(name="unknown", file=place[0], line=place[1])

    def _look(self, way: Way, step: int) -> tuple[Ran, Ran]:
        """Run both with operations noted; what repeats by chance is tried again."""
        window = (0 if step < _FEW else step, step)
        self.tell(f"looking at the operations of step {step + 1}")
        plan = Plan(digests=DIGESTS, operations=window, sources=True, look="every", steps=step + 1)
        first = self.runner.run(replace(self.base, kind="first"), plan=plan)
        for _ in range(_MAX_TRIES):
            second = self.runner.run(way, plan=plan)
            parting = chains.part(first.updates, second.updates, outcome=way.outcome)
            if parting is not None:
                break
        return first, second

    def _try(self, found: list[Finding]) -> Finding | None:
        for finding in found:
            for hold in CAUSES[finding.name].holds:
                if self._is_same_with(hold):
                    return _proved(finding, hold)
        return None

    def _try_all(self, found: list[Finding]) -> Finding | None:
        """Make every experiment: one of them may tell what the evidence did not."""
        for hold in _BLIND:
            if self._is_same_with(hold):
                place = found[0] if found else Finding(name="unknown")
                return _proved(replace(place, name=_OF_HOLD[hold], evidence=[]), hold)
        return None

    def _is_same_with(self, hold: str) -> bool:
        if hold not in self._outcomes:
            self.tell(f"two runs with {_WORDS[hold]}")
            way = replace(self.base, kind="again", hold=_WITH.get(hold, (hold,)))
            plan = Plan(digests=DIGESTS, steps=self._step + 1 + _MORE_STEPS)
            first, second = (self.runner.run(way, plan=plan) for _ in range(2))
            is_run = first.code == second.code == 0 and bool(first.updates)
            parting = chains.part(first.updates, second.updates, outcome=way.outcome)
            self._outcomes[hold] = is_run and parting is None
        return self._outcomes[hold]


def _proved(finding: Finding, hold: str) -> Finding:
    finding.is_proved = True
    finding.evidence.append(f"with {_WORDS[hold]}, two runs are the same")
    return finding
