"""Findings and verdicts beside the curves of other tools, read back by the tools themselves."""

from pathlib import Path
from typing import Any

import pytest

from tests.report.growing import Writer
from tests.report.test_export import scalars
from truestep.report.answers import CURVE, findings_curve
from truestep.report.export import export, open_run
from truestep.report.verdicts import check_words

FINDING = {
    "code": "LOOP01",
    "severity": "error",
    "file": "/home/me/train.py",
    "line": 17,
    "step": 2,
    "message": "gradients are not zeroed | `zero_grad()` is missing",
    "fix": "Call optimizer.zero_grad().",
}
REMARK = {"code": "PERF01", "severity": "info", "file": None, "line": None, "step": 1, "message": "slow"}


def answered(folder: Path) -> Writer:
    """A record of `check` and `verify`, as `--record` leaves it: no run of truestep's own."""
    writer = Writer(folder)
    writer.record.write("check", script="train.py", findings=[FINDING, REMARK], not_observed=[], steps=16)
    return writer


FAILED = "the script failed (exit code 1): NameError: name 'x' is not defined"


@pytest.mark.verdict("nothing found{}")
@pytest.mark.verdict("not checked")
@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"steps": 12}, "nothing found in 12 steps"),
        ({"steps": 12, "findings": [REMARK]}, "1 remark in 12 steps"),
        ({"steps": 1, "findings": [FINDING]}, "1 error in 1 step"),
        ({"steps": 0, "inconclusive": FAILED}, f"not checked: {FAILED}"),
        ({"steps": 0}, "not checked: no optimizer step was recorded"),
        (
            {"steps": 3, "failed_rules": ["LOOP01: KeyError"]},
            "inconclusive: a part of truestep failed: LOOP01",
        ),
        (
            {"steps": 3, "findings": [FINDING], "inconclusive": FAILED},
            f"1 error in 3 steps; inconclusive: {FAILED}",
        ),
    ],
)
def test_nothing_found_is_said_only_of_a_script_that_was_checked(fields: dict[str, Any], line: str) -> None:
    assert check_words({"findings": [], **fields}).startswith(line)


def test_fields_of_the_wrong_kind_are_no_error(tmp_path: Path) -> None:
    odd = {"step": [], "line": {}, "file": 7, "severity": None, "message": "\ud800|\n#"}
    Writer(tmp_path).record.write("check", findings=[odd, {"step": 10**30}], steps="many")
    assert findings_curve(open_run(tmp_path).facts).steps.tolist() == [0]


def test_csv_has_a_column_only_if_something_was_checked(tmp_path: Path) -> None:
    answered(tmp_path)
    assert export(tmp_path, "csv").read_text().splitlines()[0].split(",") == ["step", "time_s", CURVE]


def test_tensorboard_shows_answers_beside_the_curves_of_another_writer(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "logs")) as writer:
        for step in range(16):
            writer.add_scalar("loss", 1.0 / (step + 1), step)
    answered(tmp_path / "run")
    export(tmp_path / "run", "tensorboard", out=tmp_path / "logs")
    assert len(scalars(tmp_path / "logs", "loss")) == 16, "nothing of theirs is made void"
    assert scalars(tmp_path / "logs", CURVE) == [(0, 0.0), (1, 1.0), (15, 1.0)]
