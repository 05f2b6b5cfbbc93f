"""The benchmarks of tuning: what they try, keep and claim, without the hours that they take."""

import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from truestep.tune.knob import ScriptFacts
from truestep.tune.knobs import pick
from truestep.tune.search.race import Contender

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.stem for path in (FOLDER / "tune").glob("*.py"))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def facts() -> ScriptFacts:
    """What a script with a loader, Adam and a linear model tells, on two cores."""
    loader = {
        "class": "DataLoader",
        "workers": 0,
        "pin_memory": False,
        "persistent": False,
        "prefetch": None,
        "length": 10,
        "is_training": True,
    }
    optimizer = {"class": "Adam", "fused": None, "foreach": None, "can_fuse": True, "can_foreach": True}
    return ScriptFacts(
        cores=2, device="cpu", threads=2, step_s=0.01, loaders=(loader,), optimizers=(optimizer,)
    )


def _found(settings: dict[str, Any], ratio: float | None, **more: Any) -> dict[str, Any]:
    fields = None if ratio is None else {"median": ratio, "low": ratio - 0.01, "high": ratio + 0.01, "num": 9}
    return {"settings": settings, "base": {}, "ratio": fields, "seconds": 10.0, **more}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_trains_and_is_seen_with_its_loader_its_model_and_its_optimizer(
    bench: Callable[[str], Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = bench("tune_scripts")
    assert name in scripts.SCRIPTS
    monkeypatch.chdir(tmp_path)
    with Contender(scripts.script_of(name), {}, knobs={}) as runner:
        runner.start()
        until_s = time.monotonic() + 200
        assert runner.first(until_s=until_s) is not None, runner.tail
        assert runner.advance(9, until_s=until_s) is not None, runner.tail
        facts = runner.facts
    assert len(runner.losses) == 10 and None not in runner.losses
    assert facts["loaders"][0]["workers"] == 0 and len(facts["optimizers"]) == len(facts["models"]) == 1


def test_each_script_has_knobs_to_sweep(bench: Callable[[str], Any]) -> None:
    assert sorted(bench("tune_sweep").KNOBS) == SCRIPTS == sorted(bench("tune_scripts").SCRIPTS)


def test_a_sweep_has_every_setting_once_and_none_in_which_a_knob_does_nothing(
    bench: Callable[[str], Any], facts: ScriptFacts
) -> None:
    knobs = pick(("workers", "persistent", "threads", "fused", "foreach"))
    settings = bench("tune_sweep").all_settings(knobs, facts)
    # Workers 0, 1, 2, 4, the last three kept or not; 1 or 2 threads; three optimizers; without the start.
    assert len(settings) == 7 * 2 * 3 - 1
    assert len({json.dumps(item, sort_keys=True) for item in settings}) == len(settings)
    assert not any("persistent" in item and "workers" not in item for item in settings)
    assert not any("fused" in item and "foreach" in item for item in settings)


def test_the_best_of_a_sweep_is_one_that_tune_may_choose(bench: Callable[[str], Any]) -> None:
    swept = [
        _found({"autocast": "bf16"}, 3.0),
        _found({"workers": 2}, 0.8),
        _found({"fused": True}, 1.1),
        _found({"threads": 1}, None),
    ]
    assert bench("tune_sweep").finalists(swept, [["autocast", "bf16"]]) == [
        {"fused": True},
        {},
        {"workers": 2},
    ]


@pytest.mark.parametrize(
    ("tuned", "against_best", "tune_s", "verdicts"),
    [
        (1.3, 1.0, 90.0, ["holds", "holds", "holds"]),
        (0.9, 1.0, 90.0, ["fails", "holds", "holds"]),
        (1.3, 0.9, 90.0, ["holds", "fails", "holds"]),
        (1.3, 1.0, 110.0, ["holds", "holds", "fails"]),
        (1.3, None, 90.0, ["holds", "not measured", "holds"]),
    ],
)
def test_a_slow_choice_a_worse_one_and_a_late_one_fail(
    bench: Callable[[str], Any], tuned: float, against_best: float | None, tune_s: float, verdicts: list[str]
) -> None:
    sweep = bench("tune_sweep")
    chosen = {**_found({"fused": True}, tuned), "seconds": tune_s}
    hardest = None if against_best is None else _found({"fused": True}, against_best)
    claims = sweep.claims_of("a script", chosen, hardest, 1000.0)
    assert [claim.verdict for claim in claims] == verdicts


def test_what_is_finished_is_not_done_again(bench: Callable[[str], Any], tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    kept = bench("tune_scripts").Kept(str(path))
    assert kept.part("one", lambda: {"ratio": 1.5}) == {"ratio": 1.5}
    again = bench("tune_scripts").Kept(str(path))
    assert again.part("one", lambda: pytest.fail("done twice")) == {"ratio": 1.5}
    assert again.part("two", lambda: 2) == 2
    assert again.part("three", lambda: {"failed": "too late"}) == {"failed": "too late"}
    assert json.loads(path.read_text()) == {"one": {"ratio": 1.5}, "two": 2}
