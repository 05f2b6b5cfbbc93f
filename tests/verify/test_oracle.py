"""Scripts in which one tensor is made to differ, against what verify says of them: a few, others each day."""

import importlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("verify_oracle")


def _rotation() -> int:
    return datetime.now(UTC).date().toordinal()


def test_no_tensor_that_differs_is_overlooked(oracle: Any) -> None:
    targets = oracle.choose(oracle.planting.all_targets(), 12, rotation=_rotation())
    answers = [oracle.compare(target) for target in targets]
    assert [answer for answer in answers if answer.said not in ("different", "void")] == []


def test_no_wrong_cause_is_called_proved(oracle: Any) -> None:
    places = oracle.choose(oracle.planting.all_targets(), 1, rotation=_rotation())
    warm = [name for name, source in oracle.SOURCES.items() if not source.is_cold and not source.is_rare]
    (target,) = oracle.planting.with_sources(places, [warm[_rotation() % len(warm)]])
    answer = oracle.command(target)
    assert answer.said in ("different", "void") and not oracle.is_wrong(answer), answer


def test_a_script_in_which_nothing_is_planted_is_called_the_same(oracle: Any) -> None:
    names = oracle.planting.script_names()
    answer = oracle.clean(names[_rotation() % len(names)])
    assert answer.said == "same", answer


def test_every_tensor_of_every_script_can_be_a_target(oracle: Any) -> None:
    targets = oracle.planting.all_targets()
    assert len(targets) >= 400 and {target.script for target in targets} == {*oracle.planting.script_names()}
    assert {target.size for target in targets} == {"ulp", "small", "large"}


def test_an_answer_that_breaks_the_claim_is_noticed(oracle: Any) -> None:
    def answer(way: str, said: str, **more: Any) -> Any:
        return oracle.Answer(way=way, words="", said=said, **more)

    wrong = [
        answer("compared", "same"),
        answer("command", "different", is_proved=True),
        answer("clean", "different"),
    ]
    right = [answer("compared", "different"), answer("command", "different", is_proved=True, is_cause=True)]
    assert [oracle.is_wrong(item) for item in wrong + right] == [True] * 3 + [False] * 2
    assert [row["found"] for row in oracle.figures(wrong)[:1]] == [1]
    low, high = oracle.wilson(0, 300)
    assert low == 0 and 0.012 < high < 0.013
