"""The command: what it prints, its JSON, the file of settings, and what it refuses."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from tests.tune.planting import put
from truestep.cli import tune as command
from truestep.cli._progress import Progress
from truestep.errors import UsageError
from truestep.tune.search.compare import Comparison
from truestep.tune.search.first_look import look_at
from truestep.tune.search.intervals import Interval
from truestep.tune.search.result import Result, Trial
from truestep.watch import Script

TRUESTEP = str(Path(sys.executable).with_name("truestep"))

pytestmark = pytest.mark.cold  # as in tests/tune
WITH_RUN = """\
import time

import torch
import truestep as ts


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(4)


with ts.Run("runs/slow", seed=1, progress=False) as run:
    model = run.place(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(ts.Loader(Slow(), batch_size=8), epochs=1):
        for x in step:
            step.backward(model(x).pow(2).mean())
        step.update(optimizer)
"""


def tune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TRUESTEP, "tune", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=400
    )


@pytest.mark.slow
def test_the_answer_as_json(tmp_path: Path) -> None:
    put(tmp_path, "pausing.py")
    words = ("--knobs", "pin_memory,cudnn_benchmark", "--format", "json")
    done = tune(tmp_path, *words, "pausing.py")
    said = json.loads(done.stdout)
    assert done.returncode == 2 and said["inconclusive"] == "no setting was measured (2 skipped).", (
        done.stderr
    )
    assert {trial["knob"]: trial["status"] for trial in said["trials"]} == {
        "pin_memory": "skipped",
        "cudnn_benchmark": "skipped",
    }
    assert (said["settings"], said["ratio"], said["lines"]) == ({}, None, {})
    assert sum(row["share"] for row in said["profile"]["shares"].values()) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_run_of_ours_gets_its_settings_written_and_is_then_faster_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WITH_RUN)
    done = tune(tmp_path, "--knobs", "workers", "--budget", "60", "train.py")
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "truestep.toml").read_text()
    assert "times as fast" in done.stdout and "written: truestep.toml" in done.stdout, done.stdout
    assert written.startswith("# Written by truestep tune: ") and "\n[settings]\nworkers = " in written
    again = look_at(Script(path=str(tmp_path / "train.py")))
    assert [loader["workers"] for loader in again.loaders] == [int(written.split("workers = ")[1])]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gone.py",), "gone.py is not a file. Options of truestep come before the script"),
        (("--knobs", "fast", "train.py"), "unknown knob 'fast'. Choose from workers, threads"),
        (("--budget", "0", "train.py"), "the budget must be more than 0 seconds, got 0."),
    ],
)
def test_what_is_asked_wrongly_is_refused_with_what_to_do(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    done = tune(tmp_path, *words)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not (tmp_path / "runs").exists()


class Found:
    """An answer whose settings cannot be written."""

    def as_fields(self) -> dict[str, str]:
        return {"settings": "found"}

    inconclusive = None

    def write_settings(self) -> Path | None:
        raise UsageError("truestep.toml cannot be written (Is a directory).")


def test_settings_that_cannot_be_written_are_told_after_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = command._Answer(Script(path="train.py"), is_json=True, progress=Progress(""))
    monkeypatch.setattr("truestep.tune.search.search.tune", lambda *_, **__: Found())
    with pytest.raises(UsageError, match=r"truestep.toml cannot be written"):
        answer.show_settings(knobs=None, budget_s=1)
    assert json.loads(capsys.readouterr().out) == {"settings": "found"}


@pytest.mark.verdict(": what looked faster {}")
@pytest.mark.verdict("nothing to change")
def test_what_paid_alone_and_failed_together_is_told_with_the_reason() -> None:
    final = Comparison(ratio=None, failed="failed after 9 steps: out of memory")
    told = told_of(replace(result_of(PAYS), final=final))
    assert "could not be measured a second time (failed after 9 steps: out of memory)" in told
    assert "no clear gain" not in told


def told_of(result: Result) -> str:
    parts = [part for line in command._closing(result, None) for part in line]
    return "".join(part if isinstance(part, str) else part[0] for part in parts)


def result_of(*trials: Trial, is_interrupted: bool = False) -> Result:
    anything: Any = SimpleNamespace(as_fields=dict)
    return Result(
        script=Script(path="train.py"),
        facts=anything,
        trials=trials,
        settings={},
        lines={},
        for_run={},
        final=None,
        learning=None,
        seconds=1.0,
        budget_s=60.0,
        is_interrupted=is_interrupted,
    )


SLOWER = Comparison(ratio=Interval(median=0.9, low=0.8, high=1.0, num=20))
FASTER = Comparison(ratio=Interval(median=2.0, low=1.9, high=2.1, num=20))


LATE = Trial(knob="a", words="1", status="untested")
FAILED = Trial(knob="a", words="1", status="failed", found=Comparison(ratio=None, failed="x"))
NO_GAIN = Trial(knob="a", words="1", status="no gain", found=SLOWER)
UNTESTED = [Trial(knob="b", words=str(index), value=index, status="untested") for index in range(7)]
SKIPPED = Trial(knob="b", words="", status="skipped")
REFUSED = Trial(knob="b", words="1", status="refused", found=FASTER)
PAYS = Trial(knob="a", words="1", status="pays", found=FASTER)


@pytest.mark.verdict("there was nothing to try")
@pytest.mark.verdict("no clear gain in {} of {} settings")
@pytest.mark.verdict("looked faster so far: {}")
@pytest.mark.parametrize(
    ("result", "code", "said"),
    [
        (result_of(NO_GAIN), 0, "no clear gain in 1 of 1 settings"),
        (result_of(NO_GAIN, *UNTESTED), 0, "no clear gain in 1 of 8 settings; 7 untested: --budget 480"),
        (result_of(NO_GAIN, SKIPPED), 0, "no clear gain in 1 of 1 settings"),
        (result_of(NO_GAIN, REFUSED), 0, "no clear gain in 1 of 2 settings; 1 refused"),
        (result_of(LATE), 2, "no setting was measured (1 untested). Pass a larger --budget."),
        (result_of(FAILED), 2, "(1 failed)"),
        (result_of(), 2, "no setting was measured (there was nothing to try)"),
        (result_of(PAYS, is_interrupted=True), 130, "looked faster so far: a 1"),
    ],
    ids=["measured", "few", "skipped", "refused", "too-late", "failed", "nothing", "interrupted"],
)
def test_what_was_not_measured_is_not_called_no_gain(
    monkeypatch: pytest.MonkeyPatch, result: Result, code: int, said: str
) -> None:
    answer = command._Answer(Script(path="train.py"), is_json=False, progress=Progress(""))
    monkeypatch.setattr("truestep.tune.search.search.tune", lambda *_, **__: result)
    assert said in told_of(result)
    assert ("no clear gain" in told_of(result)) is (code == 0)
    if not code:
        answer.show_settings(knobs=None, budget_s=1)
        return
    with pytest.raises(typer.Exit) as ended:
        answer.show_settings(knobs=None, budget_s=1)
    assert ended.value.exit_code == code


@pytest.mark.verdict("the same")
@pytest.mark.parametrize(("changes_bits", "said"), [(False, "the same"), (True, "may vary")])
def test_bits_are_the_same_only_of_a_setting_that_keeps_them(changes_bits: bool, said: str) -> None:
    row = "".join(text for text, _ in command._row(replace(NO_GAIN, changes_bits=changes_bits)))
    assert [words for words in ("the same", "may vary") if words in row] == [said]
