"""Which steps are looked at when two runs part elsewhere each time, and what counts as a proof."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.verify.test_chains import ran, update
from truestep.verify import proof
from truestep.verify.causes import FoundCause
from truestep.verify.proof import Proof
from truestep.verify.runs import Ran
from truestep.verify.suspects import can_matter
from truestep.verify.ways import Way


@pytest.mark.parametrize(("num_operations", "again"), [(3_000, (0, 5)), (30_000, (5, 5))])
def test_all_steps_are_looked_at_together_where_their_operations_are_few(
    monkeypatch: pytest.MonkeyPatch, num_operations: int, again: tuple[int, int]
) -> None:
    windows = []

    def look_at(_proof: Proof, _way: Any, window: tuple[int, int]) -> Any:
        windows.append(window)
        num_steps = window[1] + 1 - window[0]
        ran = SimpleNamespace(first=SimpleNamespace(operations=[None] * (num_operations * num_steps)))
        return ran, ran, None  # this time the two are the same

    monkeypatch.setattr(Proof, "_look_at", look_at)
    anything: Any = None
    Proof(runner=anything, base=anything, on_status=print)._look(anything, 5)
    assert windows == [(0, 5), again]


class Runs:
    """Runs of a script whose result is one of several, by chance, unless the right thing is held."""

    def __init__(self, cause: str | None, results: str) -> None:
        self.cause = cause
        self.results = results
        self.num_free = 0
        self.frozen: list[str] = []

    def run(self, way: Way, *, plan: Any) -> Ran:
        self.frozen += way.frozen
        if self.cause is not None and self.cause in way.frozen:
            return ran(update(0))
        result = self.results[self.num_free % len(self.results)]
        self.num_free += 1
        return ran(update(0, weights=result))


def experiment(runs: Runs, frozen: str) -> int:
    anything: Any = runs
    return Proof(runner=anything, base=Way(), on_status=lambda _: None)._num_same_with(frozen, limit=0.01)


def test_a_cause_is_proved_by_enough_runs_and_a_control_without_it() -> None:
    runs = Runs("clock", "abcdefgh")
    num = experiment(runs, "clock")
    assert num >= 4 and runs.frozen == ["clock"] * num
    assert runs.num_free == 2, "two runs without it were compared"


@pytest.mark.verdict("with {}, {} runs are the same; a run without it differs")
def test_runs_that_are_the_same_by_chance_prove_nothing() -> None:
    assert experiment(Runs(None, "aaab"), "random") == 0
    assert experiment(Runs(None, "a"), "random") == 0, "without it they are the same, too"


def test_the_rarer_a_difference_the_more_runs_are_needed() -> None:
    rare, always = Runs("clock", "aaaabaaaab"), Runs("clock", "abcdefgh")
    few, many = experiment(always, "clock"), experiment(rare, "clock")
    assert many > few


def test_what_was_not_seen_to_differ_is_not_experimented_with() -> None:
    """A seeded generator, and folders that nobody lists."""
    same = ran(update(0, generators={"random": "r", "torch": "t"}))
    other = ran(update(0, generators={"random": "r", "torch": "u"}))
    names = ("random", "listing", "clock", "torch", "hash")
    assert [name for name in names if can_matter(name, (same, other))] == ["torch", "hash"]


def test_what_an_experiment_alone_proves_is_not_told_at_the_line_of_a_suspect() -> None:
    first, second = (ran(update(0, generators={"random": state})) for state in "ab")
    runs: Any = Runs("random", "abcdefgh")
    asked = Proof(runner=runs, base=Way(), on_status=lambda _: None)
    found = asked._try_all(first, second)
    assert found is not None and (found.name, found.is_proved) == ("unseeded-random", True)
    assert (found.file, found.line) == (None, None)


def test_without_experiments_the_likeliest_cause_is_told_and_not_proved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, told = Runs("clock", "abcdefgh"), list[str]()
    anything: Any = runs
    suspect = FoundCause(name="clock-branch", file="train.py", line=5)
    monkeypatch.setattr(proof, "suspects", lambda *_, **__: [suspect])
    divergence: Any = SimpleNamespace(step=0, what="loss", first=None, second=None)
    monkeypatch.setattr(Proof, "_look", lambda *_: (ran(update(0)), ran(update(0)), 0))
    for has_experiments, is_proved in ((False, False), (True, True)):
        found = Proof(
            runner=anything,
            base=Way(),
            on_status=lambda _: None,
            on_likely=lambda finding: told.append(finding.name),
            has_experiments=has_experiments,
        ).find(Way(kind="again"), divergence=divergence)
        assert (found.name, found.is_proved) == ("clock-branch", is_proved)
        assert bool(runs.frozen) == has_experiments
    assert told == ["clock-branch"], "before the experiments, and only then"
