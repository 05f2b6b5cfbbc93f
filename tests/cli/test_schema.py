"""`truestep schema`: every field that a command prints is in its schema, and every field there is printed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tests.check.test_check import SCRIPT, write
from tests.check.test_formats import found, result_of
from tests.report.records import killed_and_resumed
from truestep.check import evaluate_rules
from truestep.cli import build_app, doctor
from truestep.cli._answer import Answer
from truestep.cli._page import Format
from truestep.cli.attach import _fields as _attach_fields
from truestep.hang.attach import Job, Worker
from truestep.hang.causes import Cause
from truestep.rules import Evidence, find_rules
from truestep.rules.env._machine import Machine
from truestep.watch import Script
from truestep.watch.evidence.kinds import Place
from truestep.watch.evidence.stalls import Standing

jsonschema = pytest.importorskip("jsonschema")

TRUESTEP = str(Path(sys.executable).with_name("truestep"))
NAMES = ["attach", "check", "doctor", "explain", "replay", "rule", "show", "tune", "verify", "watch"]


def run(*words: str) -> str:
    done = CliRunner().invoke(build_app(), list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.stdout


def schema_of(command: str) -> dict[str, Any]:
    """Return a schema that allows no other fields than those it names."""
    return close(json.loads(run("schema", command)))


def close(part: Any) -> Any:
    if isinstance(part, list):
        return [close(item) for item in part]
    if not isinstance(part, dict):
        return part
    closed = {name: close(value) for name, value in part.items()}
    return {**closed, "additionalProperties": False} if "properties" in part else closed


def agree(command: str, answer: Any) -> None:
    jsonschema.Draft202012Validator(schema_of(command)).validate(answer)


def test_every_command_with_json_has_a_schema_and_no_other() -> None:
    commands = get_command(build_app()).commands  # type: ignore[attr-defined]
    with_json = sorted(
        name
        for name, command in commands.items()
        if any("--format" in param.opts for param in command.params)
    )
    assert with_json == run("schema").split() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_valid_and_requires_fields(name: str) -> None:
    schema = json.loads(run("schema", name))
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(jsonschema.ValidationError):
        agree(name, {"something": "else"})


def test_an_unknown_schema_is_refused() -> None:
    done = CliRunner().invoke(build_app(), ["schema", "run"])
    assert "'run' has no JSON schema. These have one: attach, check" in str(done.exception)


def test_findings_with_and_without_places_agree_with_the_schema() -> None:
    follows = (found("LOOP10", file=None, line=None, step=None),)
    result = result_of(found("LOOP01", follows=follows, cost="3 %"), code=1)
    for script in (Script(path="train.py"), Script(path="train.py", device="cpu")):
        answer = Answer(script=script, result=result, patch="--- a/train.py")
        agree("check", json.loads(json.dumps(answer.as_fields())))


def test_rules_explanations_and_runs_agree_with_the_schema(tmp_path: Path) -> None:
    agree("rule", json.loads(run("rule", "--format", "json")))
    agree("rule", json.loads(run("rule", "--format", "json", "LOOP01", "ENV01")))
    code = "x = torch.ones(3, 1, requires_grad=True); y = x + torch.ones(4); y.sum(0).T; x.view(-1)"
    agree("explain", json.loads(run("explain", "--format", "json", code)))
    killed_and_resumed(tmp_path / "run")
    agree("watch", json.loads(run("watch", "--format", "json", str(tmp_path / "run"))))


def test_standings_of_ranks_agree_with_the_schema() -> None:
    place = Place("/repo/train.py", 3, "main")
    standings = [Standing(rank=rank, size=2, pid=rank, doing="living", stack=(place,)) for rank in range(2)]
    worker = Worker(rank=0, pid=9, place=None, call="", is_locked=True)
    job = Job(standings=standings, workers=[worker], unread=["4711: gone"])
    for cause in (None, Cause(name="lock", sentence="It waits.", fix="Release it.")):
        agree("attach", json.loads(json.dumps(_attach_fields(job, None, cause))))


def test_machines_agree_with_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = evaluate_rules(
        find_rules(), Evidence(machine=Machine(torch_error="No module named 'torch'"))
    )
    doctor._answer(Machine(), evaluation, format_=Format.json)
    agree("doctor", json.loads(capsys.readouterr().out))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("check", ["--steps", "3"]),
        ("check", ["--fix"]),
        ("show", []),
        ("verify", ["--steps", "3"]),
        ("tune", ["--knobs", "threads", "--budget", "30"]),
    ],
)
def test_real_answers_agree_with_the_schema(tmp_path: Path, command: str, words: list[str]) -> None:
    write(tmp_path, SCRIPT.replace("range(6)", "range(60)"))
    done = subprocess.run(
        [TRUESTEP, command, "--format", "json", *words, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout, done.stderr
    agree(command, json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", ["", "import random; torch.manual_seed(random.getrandbits(31))", "raise ValueError"]
)
def test_verdicts_agree_with_the_schema(tmp_path: Path, change: str) -> None:
    write(tmp_path, SCRIPT.replace("torch.manual_seed(0)", f"torch.manual_seed(0)\n{change}"))
    done = subprocess.run(
        [TRUESTEP, "verify", "--format", "json", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    answer = json.loads(done.stdout)
    agree("verify", answer)
    assert answer["same"] is {"": True, "raise ValueError": None}.get(change, False)
