"""The search keeps what pays, refuses what breaks learning, and leaves alone what does nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tune.planting import knob, put
from truestep import watch
from truestep.tune import Asked, Knob, Result, Skip, tune
from truestep.tune.learning import judge

PLANTED = {
    "less": knob("less", {"pause_s": 0.002}),
    "light": knob("light", {"spared_s": 0.001}),
    "lighter": knob("lighter", {"spared_s": 0.0012}),
    "lightest": knob("lightest", {"spared_s": 0.0014}),
    "nothing": knob("nothing", {}),
    "more": knob("more", {"pause_s": 0.0044}),
    "unlearnt": knob("unlearnt", {"pause_s": 0.001, "rate": 0.0}, changes_bits=True),
    "broken": knob("broken", {"fails": True}),
    "elsewhere": Knob(
        name="elsewhere",
        about="Never here.",
        propose=lambda _facts, _chosen: Skip(reason="it needs another machine."),
        lines=lambda _value: [],
        changes_bits=False,
        home="planted",
    ),
}


def search(folder: Path, *names: str, budget_s: float = 200.0) -> Result:
    put(folder, "pausing.py")
    script = watch.Script(path="pausing.py")
    return tune(script, Asked(budget_s=budget_s, knobs={name: PLANTED[name] for name in names}))


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "result.txt").exists()  # the user's own folder is not written to


@pytest.mark.slow
def test_a_knob_that_pays_is_kept_and_one_that_breaks_learning_is_refused(tmp_path: Path) -> None:
    found = search(tmp_path, "less", "unlearnt", "broken", "elsewhere")
    status = {trial.knob: trial.status for trial in found.trials}
    assert status == {"less": "pays", "unlearnt": "refused", "broken": "failed", "elsewhere": "skipped"}
    assert found.settings == {"less": {"pause_s": 0.002}}
    assert found.final is not None and found.final.ratio is not None and found.final.ratio.low > 1.0
    refused = next(trial for trial in found.trials if trial.knob == "unlearnt")
    assert refused.learning is not None and refused.learning.distance > refused.learning.allowed
    assert "changes learning" in refused.reason
    fields = json.loads(json.dumps(found.as_fields()))
    assert fields["settings"] == {"less": {"pause_s": 0.002}} and len(fields["trials"]) == 4


@pytest.mark.slow
def test_those_that_pay_are_put_on_top_of_the_best_all_at_once(tmp_path: Path) -> None:
    found = search(tmp_path, "light", "lighter", "lightest")
    assert [trial.status for trial in found.trials] == ["pays"] * 4, found.trials
    last = found.trials[-1]
    assert last.words == "together" and set(last.value) | set(last.on_top_of) == set(found.settings)
    assert set(found.settings) == {"light", "lighter", "lightest"}


@pytest.mark.slow
def test_knobs_that_do_not_pay_are_not_kept(tmp_path: Path) -> None:
    found = search(tmp_path, "nothing", "more")
    assert {(trial.knob, trial.status) for trial in found.trials} == {
        ("nothing", "no gain"),
        ("more", "no gain"),
    }, found.trials
    assert found.settings == {} and found.final is None


@pytest.mark.slow
def test_what_the_budget_does_not_reach_is_told(tmp_path: Path) -> None:
    found = search(tmp_path, "less", "nothing", budget_s=1.0)
    assert [trial.status for trial in found.trials] == ["not tried", "not tried"]
    assert "the budget of 1 s was used up" in found.trials[0].reason


def curve(*, start: float, rate: float, num: int = 80) -> list[float | None]:
    return [start / (1 + rate * step) for step in range(num)]


@pytest.mark.parametrize(
    ("tuned", "survives"),
    [
        (curve(start=1.0, rate=0.1), True),
        (curve(start=1.01, rate=0.1), True),
        (curve(start=1.0, rate=0.0), False),
        (curve(start=0.2, rate=0.1), False),  # a loss that is lower for no reason is no better
        ([*curve(start=1.0, rate=0.1)[:40], *[float("nan")] * 40], False),
    ],
)
def test_a_curve_survives_if_it_is_as_near_as_another_seed(tuned: Any, survives: bool) -> None:
    own = curve(start=1.0, rate=0.1)
    seeds = [curve(start=1.03, rate=0.1), curve(start=0.98, rate=0.1)]
    assert judge(tuned, own, seeds=seeds).survives is survives
