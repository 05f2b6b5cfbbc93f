"""Findings and verdicts beside the curves of other tools, read back by the tools themselves."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.report.growing import Writer
from tests.report.test_export import events_of, mlflow_server, scalars, wandb_history
from truestep.report.answers import CURVE, answers, findings_curve
from truestep.report.export import export, open_run
from truestep.report.send import to_mlflow

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
DIFFERENCE = {
    "step": 3,
    "name": "unseeded-torch",
    "cause": "torch is not seeded",
    "file": "train.py",
    "line": 4,
}


def answered(folder: Path) -> Writer:
    """A record of `check` and `verify`, as `--record` leaves it: no run of truestep's own."""
    writer = Writer(folder)
    writer.record.write("check", script="train.py", findings=[FINDING, REMARK], not_observed=[], steps=16)
    writer.record.write("verify", script="train.py", same=False, runs=[{}, {}], first_difference=DIFFERENCE)
    return writer


def test_answers_are_one_line_and_a_table(tmp_path: Path) -> None:
    answered(tmp_path)
    check, verify = answers(open_run(tmp_path).facts)
    assert check.line == "1 error, 1 remark in 16 steps"
    assert verify.line == "runs differ from step 3 on"
    assert check.rows[0] == ("error", "LOOP01", "train.py:17", FINDING["message"], FINDING["fix"])
    assert "not zeroed \\| \\`zero\\_grad()\\`" in check.markdown, "no cell ends early"
    assert "| different | unseeded-torch | train.py:4 | torch is not seeded |" in verify.markdown
    assert list(findings_curve(open_run(tmp_path).facts)) == [(0, 0.0), (1, 1.0), (15, 1.0)]


SAME = "2 runs are bit-for-bit identical in"


@pytest.mark.verdict("{} runs are bit-for-bit identical in {}")
@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"same": True, "runs": [1, 2], "steps": 9, "whole": True}, f"{SAME} all 9 steps"),
        ({"same": True, "runs": [1, 2], "steps": 60, "whole": False}, f"{SAME} the first 60 steps"),
        (
            {"same": True, "runs": [1, 2], "steps": 60, "whole": False, "expected_steps": 480},
            f"{SAME} the first 60 of about 480 steps",
        ),
        ({"same": True, "runs": [1, 2], "steps": "all", "whole": 7}, f"{SAME} the steps compared"),
        ({"same": None, "reason": "no steps"}, "inconclusive: no steps"),
        ({"same": False, "first_difference": 7}, "inconclusive: "),
    ],
)
def test_verdicts(tmp_path: Path, fields: dict[str, Any], line: str) -> None:
    Writer(tmp_path).record.write("verify", **fields)
    assert [item.line for item in answers(open_run(tmp_path).facts)] == [line]


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
def test_nothing_found_is_said_only_of_a_script_that_was_checked(
    tmp_path: Path, fields: dict[str, Any], line: str
) -> None:
    Writer(tmp_path).record.write("check", **{"findings": [], **fields})
    assert [item.line.startswith(line) for item in answers(open_run(tmp_path).facts)] == [True]


def test_fields_of_the_wrong_kind_are_no_error(tmp_path: Path) -> None:
    odd = {"step": [], "line": {}, "file": 7, "severity": None, "message": "\ud800|\n#"}
    Writer(tmp_path).record.write("check", findings=[odd, {"step": 10**30}], steps="many")
    (check,) = answers(open_run(tmp_path).facts)
    assert check.markdown.encode() and len(check.rows) == 2
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
    (text,) = events_of(tmp_path / "logs").Tensors("truestep/check/text_summary")
    assert b"truestep check: 1 error, 1 remark in 16 steps" in text.tensor_proto.string_val[0]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
def test_a_real_mlflow_server_shows_answers_with_a_run_that_is_there(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    answered(tmp_path / "run")
    with mlflow_server(tmp_path) as address:
        client = MlflowClient(tracking_uri=address)
        theirs = client.create_run("0").info.run_id
        client.log_metric(theirs, "loss", 0.5, step=15)
        client.set_tag(theirs, "mlflow.note.content", "My notes")
        for _ in range(2):
            assert to_mlflow(tmp_path / "run", tracking_uri=address, run_id=theirs) == theirs
        sent = client.get_run(theirs)
        history = client.get_metric_history(theirs, CURVE)
        files = [item.path for item in client.list_artifacts(theirs, "truestep")]
    assert sent.data.tags["truestep.check"] == "1 error, 1 remark in 16 steps"
    note = sent.data.tags["mlflow.note.content"]
    assert note.startswith("My notes\n\n**truestep check") and note.count("LOOP01") == 1
    assert {(item.step, item.value) for item in history} == {(0, 0.0), (1, 1.0), (15, 1.0)}
    assert (sent.data.metrics["loss"], sent.info.status) == (0.5, "RUNNING")
    assert sorted(files) == ["truestep/check.md", "truestep/verify.md"]


def send(call: str, folder: Path, *arguments: str) -> str:
    """Call a function of `send` in its own process; return the last word that it prints."""
    code = f"import sys; from truestep.report.send import *; print({call})"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_weights_and_biases_gets_answers_offline(tmp_path: Path) -> None:
    answered(tmp_path / "run")
    call = "to_wandb(sys.argv[1], mode='offline', folder=sys.argv[2])"
    run_id = send(call, tmp_path, tmp_path / "run", tmp_path)
    (file,) = tmp_path.glob(f"wandb/offline-run-*-{run_id}/*.wandb")
    history, _ = wandb_history(file)
    assert [row[CURVE] for row in history if CURVE in row] == [0.0, 1.0, 1.0]
    (table,) = tmp_path.glob("wandb/**/*check*.table.json")
    assert json.loads(table.read_text())["data"][0][1] == "LOOP01"
    again = send(call.replace(")", ", run_id=sys.argv[3])"), tmp_path, tmp_path / "run", tmp_path, run_id)
    assert again == run_id


@pytest.mark.slow
@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_gets_curves_and_answers(tmp_path: Path) -> None:
    import sqlite3

    writer = answered(tmp_path / "run")
    writer.start(end=2)
    writer.steps(0, [2.0, 1.0])
    name = send("to_trackio(sys.argv[1], project='digits')", tmp_path, tmp_path / "run")
    assert name == "run"
    again = send("to_trackio(sys.argv[1], project='digits', run_id='run')", tmp_path, tmp_path / "run")
    assert again == "run"
    with sqlite3.connect(tmp_path / "digits.db") as database:
        rows = database.execute("select step, metrics from metrics order by step").fetchall()
        alerts = database.execute("select title from alerts").fetchall()
    values = [(step, json.loads(text)) for step, text in rows]
    assert [row["loss"] for _, row in values if "loss" in row] == [2.0, 1.0]
    assert [row[CURVE] for _, row in values if CURVE in row] == [0.0, 1.0, 1.0]
    assert sum("LOOP01" in str(row.get("truestep/check")) for _, row in values) == 2
    assert ("truestep check: 1 error, 1 remark in 16 steps",) in alerts
