"""A check whose findings go to a log while the block still runs."""

import logging
import subprocess
import sys

import pytest

import truestep
from tests.check.test_within import make, train
from truestep.errors import UsageError
from truestep.frameworks.live import LiveCheck

NOTHING = {"select": (), "ignore": (), "steps": None}


@pytest.fixture
def live(caplog):
    caplog.set_level(logging.INFO)
    return LiveCheck(logging.getLogger("test.truestep"), **NOTHING)


def test_a_finding_is_logged_when_it_is_certain_and_once(live, caplog):
    model, optimizer = make()
    live.begin()
    train(model, optimizer, is_zeroed=False, num_steps=4)
    assert live.look() == []  # the first three steps are complete when the fifth has begun
    train(model, optimizer, is_zeroed=False, num_steps=1)
    assert [item.rule.meta.code for item in live.look()] == ["LOOP01"]
    assert "loss.backward()  # the line of the finding" in caplog.records[-1].message
    assert caplog.records[-1].levelno == logging.ERROR
    assert live.look() == [] and live.end() == []
    assert caplog.records[-1].message == "truestep: 1 error in 5 steps"
    assert live.check.has_mistakes


def test_what_later_steps_could_take_back_is_logged_at_the_end(live):
    model, optimizer = make()
    live.begin()
    train(model, optimizer, is_zeroed=False, num_steps=3)  # too few to be certain early
    assert live.look() == []
    assert [item.rule.meta.code for item in live.end()] == ["LOOP01"]


def test_a_suppressed_finding_is_not_logged(live):
    model, optimizer = make()
    live.begin()
    for x in [optimizer.param_groups[0]["params"][0]] * 6:
        (model(x) ** 2).mean().backward()  # truestep: ignore[LOOP01] -- on purpose
        optimizer.step()
        assert live.look() == []
    assert "LOOP01" not in [item.rule.meta.code for item in live.end()]


def test_after_enough_steps_nothing_is_observed_any_more(caplog):
    live = LiveCheck(logging.getLogger("test.truestep"), select=(), ignore=(), steps=2)
    model, optimizer = make()
    live.begin()
    for _ in range(4):
        train(model, optimizer, num_steps=1)
        live.look()
    assert live.check.num_steps == 2 and live.check.inconclusive is None
    with truestep.checking():  # torch is free
        pass


def test_in_a_process_that_is_observed_nothing_is_checked(live, caplog):
    with truestep.checking() as outer:
        live.begin()
        train(*make(), num_steps=2)
        live.look()
        live.end()
    assert outer.num_steps == 2 and live.check is None
    assert "already observed" in caplog.text


def test_a_training_that_nobody_ended_is_ended_by_the_next_one(live):
    live.begin()
    train(*make(), num_steps=1)
    first = live.check
    live.begin()
    train(*make(), num_steps=2)
    live.end()
    assert (first.num_steps, live.check.num_steps) == (1, 2)


def test_an_unknown_rule_is_refused_before_the_training():
    with pytest.raises(UsageError, match="NOPE"):
        LiveCheck(logging.getLogger("test.truestep"), select=["NOPE"], ignore=(), steps=None)


def test_a_script_that_fails_still_logs_its_findings(tmp_path):
    (tmp_path / "train.py").write_text(
        "import logging, torch\n"
        "from truestep.frameworks.live import LiveCheck\n"
        "layer = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "live = LiveCheck(logging.getLogger('train'), select=(), ignore=(), steps=None)\n"
        "live.begin()\n"
        "for _ in range(3):\n"
        "    layer(torch.ones(1, 2)).sum().backward()\n"
        "    optimizer.step()\n"
        "raise RuntimeError('halfway')\n"
    )
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "RuntimeError: halfway" in done.stderr
    assert "error  LOOP01 stale-gradients\n  train.py:8" in done.stderr
