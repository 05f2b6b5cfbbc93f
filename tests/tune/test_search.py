"""The search keeps what pays, refuses what breaks learning, and leaves alone what does nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tune.planting import knob, put
from truestep import watch
from truestep.tune.knob import Knob, ScriptFacts
from truestep.tune.knobs import pick
from truestep.tune.search import search as searching
from truestep.tune.search.compare import Comparison
from truestep.tune.search.intervals import Interval
from truestep.tune.search.learning import compare_learning
from truestep.tune.search.result import Result
from truestep.tune.search.search import TuneOptions, _why_not, tune

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
        propose=lambda _facts, _chosen: "it needs another machine.",
        lines=lambda _value: [],
        changes_bits=False,
        home="planted:apply",
    ),
}


def search(folder: Path, *names: str, budget_s: float = 200.0) -> Result:
    put(folder, "pausing.py")
    script = watch.Script(path="pausing.py")
    return tune(script, TuneOptions(budget_s=budget_s, knobs={name: PLANTED[name] for name in names}))


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
    assert [trial.status for trial in found.trials] == ["untested", "untested"]
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
    assert compare_learning(tuned, own, seeds=seeds).survives is survives


SEEN: dict[str, Any] = {
    "threads": 1,
    "loaders": (
        {
            "class": "DataLoader",
            "workers": 2,
            "pin_memory": False,
            "persistent": False,
            "prefetch": 2,
            "length": 10,
        },
    ),
    "optimizers": (
        {"class": "AdamW", "fused": None, "foreach": None, "can_fuse": True, "can_foreach": True},
    ),
    "uses_run": True,
}


def facts_of(device: str) -> ScriptFacts:
    return ScriptFacts(cores=2, device=device, step_s=0.01, **SEEN)


def search_stubbed(
    monkeypatch: pytest.MonkeyPatch,
    gains: dict[str, Any],
    *,
    knobs: dict[str, Knob] | None = None,
    device: str = "cpu",
    **losses: tuple[float | None, ...],
) -> Result:
    """Search without a script: a knob gains what `gains` says, of a dictionary at that value alone."""

    def measure(_script: Any, base: Any, other: Any, **_: Any) -> Comparison:
        ratio = 1.0
        for name in other.keys() - base.keys():
            gain = gains[name]
            ratio *= gain.get(other[name], 1.0) if isinstance(gain, dict) else gain
        return Comparison(ratio=Interval(median=ratio, low=ratio, high=ratio, num=16), **losses)

    monkeypatch.setattr(searching, "compare", measure)
    monkeypatch.setattr(searching, "look_at", lambda *_, **__: facts_of(device))
    asked = TuneOptions(budget_s=200.0, knobs=knobs or pick(tuple(gains)))
    return tune(watch.Script(path="none.py"), asked)


@pytest.mark.parametrize("is_paying", [True, False])
def test_settings_that_exclude_each_other_are_not_kept_together(
    monkeypatch: pytest.MonkeyPatch, is_paying: bool
) -> None:
    gains = {"channels_last": 1.5, "fused": 1.2, "foreach": 1.1}
    gains = {**gains, "prefetch": {4: 1.15}, "workers": {0: 1.12 if is_paying else 1.0}}
    found = search_stubbed(monkeypatch, gains)
    assert found.settings == {"channels_last": True, "fused": True, "prefetch": 4}


@pytest.mark.verdict("every loss is bit-for-bit identical")
def test_losses_that_were_not_seen_are_not_called_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def learning(base: tuple[float | None, ...], other: tuple[float | None, ...]) -> Any:
        gains = {"channels_last": 1.5}
        return search_stubbed(monkeypatch, gains, base_losses=base, other_losses=other).learning

    unseen = learning((None,) * 30, (None,) * 20)
    assert (unseen.words, unseen.steps) == ("not compared: some steps had no loss", 20)
    few = learning((1.0,) * 30, (1.0,) * 5)
    assert (few.words, few.steps) == ("not compared: 5 steps are too few, at least 8 are needed", 5)
    same = learning((1.0,) * 30, (1.0,) * 20)
    assert (same.words, same.steps) == ("every loss is bit-for-bit identical", 20)


def test_a_run_gets_the_settings_that_it_reads_and_lines_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = search_stubbed(monkeypatch, {"compile": 1.5, "channels_last": 1.2}, device="cuda")
    assert found.settings == {"compile": True, "channels_last": True}
    assert found.for_run == {"compile": ("compile", True)}
    assert "memory_format=torch.channels_last" in found.lines["channels_last"][0]


def test_a_curve_that_is_not_finite_is_plain_json() -> None:
    own = curve(start=1.0, rate=0.1)
    found = compare_learning([float("nan")] * 80, own, seeds=())
    fields = json.loads(json.dumps(found.as_fields(), allow_nan=False))
    assert fields["curve"] == [None] * 8 and len(fields["own"]) == 8


def test_ctrl_c_ends_the_search_and_returns_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(_script: Any, _base: Any, other: dict[str, Any], **_more: Any) -> Comparison:
        if "nothing" in other:
            raise KeyboardInterrupt
        return Comparison(ratio=Interval(median=2.0, low=1.9, high=2.1, num=20), seconds=1.0)

    monkeypatch.setattr(searching, "compare", compare)
    monkeypatch.setattr(searching, "look_at", lambda *_, **__: facts_of("cpu"))
    told: list[str] = []
    asked = TuneOptions(knobs={name: PLANTED[name] for name in ("less", "nothing", "more")})
    found = tune(watch.Script(path="train.py"), asked, on_trial=lambda trial: told.append(trial.knob))
    assert told == ["less"] and found.is_interrupted
    assert found.settings == {} and found.final is None, "nothing was confirmed"


@pytest.mark.verdict("no clear gain")
@pytest.mark.verdict("no gain")
def test_a_setting_that_may_gain_or_lose_is_not_said_to_gain_nothing() -> None:
    def why(low: float, high: float) -> str:
        return _why_not(Comparison(ratio=Interval(median=(low + high) / 2, low=low, high=high, num=9)))

    assert why(0.999, 1.001) == "no gain"
    assert why(0.9, 1.3) == "no clear gain"
    assert why(1.2, 1.3) == "too few measurements to be sure"
    assert why(0.5, 0.6) == "slower"
