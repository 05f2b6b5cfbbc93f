"""Folders and files made to do harm: none of them runs code, leaves its folder, hangs or fills the memory."""

import ast
import json
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import truestep as ts
from tests.security.mutations import DEEP
from truestep.base import plainfile
from truestep.base.device import peak_bytes
from truestep.cli._page import Page
from truestep.errors import DifferentRun, FolderUnusable, StateError, TruestepError
from truestep.record import Record
from truestep.report.compose import write_report
from truestep.run.checkpoint import Snapshot, Store
from truestep.run.checkpoint import snapshot as snapshots
from truestep.watch.launch.scratch import Scratch


class Harm:
    """Unpickled, it would make a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._mark),)


def commands(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "truestep", *arguments]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_a_sealed_manifest_that_tells_a_huge_tensor_takes_no_memory(tmp_path: Path) -> None:
    store = Store(tmp_path / "snapshots", run_id="r")
    folder = store.save(Snapshot(cursor=1, states={"w": torch.ones(4)}, facts={}))
    manifest = snapshots.unseal((folder / "manifest.json").read_bytes())
    ((name, entry),) = manifest["tensors"].items()
    chunk = {"file": entry["file"], "name": name, "offsets": [0], "shape": [4]}
    manifest["tensors"][name] = {"shape": [2**30], "dtype": "float32", "chunks": [chunk]}
    (folder / "manifest.json").write_bytes(snapshots.seal({**manifest, "version": 2}))
    before = peak_bytes()
    loaded, (damage,) = store.load_newest()
    assert loaded is None and "hold 4 of 1,073,741,824 elements" in str(damage)
    assert peak_bytes() - before < 100 << 20


def train(folder: Path, **options: Any) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ts.Run(folder, seed=1, lanes=1, **options) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader([torch.ones(1)] * 4, batch_size=2), epochs=1):
            for x in step:
                step.backward(model(x).sum())
            step.update(optimizer)


def change_facts(folder: Path, **facts: Any) -> None:
    """Write other facts into all snapshots of a run, and seal them again."""
    for path in (folder / "snapshots").glob("*/manifest.json"):
        manifest = snapshots.unseal(path.read_bytes())
        manifest["facts"].update(facts)
        path.write_bytes(snapshots.seal(manifest))


def test_a_sealed_snapshot_with_facts_of_another_form_is_refused(tmp_path: Path) -> None:
    train(tmp_path)
    change_facts(tmp_path, lineage={"step": 1})
    with pytest.raises(StateError, match=r"truestep.Run did not write it.*Give this run its own folder"):
        train(tmp_path)


def test_a_snapshot_steers_no_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    escape = "\x1b]0;owned\x07\x9b2J\u202e\r"
    train(tmp_path)
    change_facts(tmp_path, recipe={f"field {escape}": f"value {escape}"})
    with pytest.raises(DifferentRun, match=r"field .*: value .* when saved, absent now") as refused:
        train(tmp_path)
    shown = "".join(traceback.format_exception(refused.value))
    accepted = re.search(r"accept=(.*) to Run", str(refused.value))
    assert accepted is not None
    train(tmp_path, accept=ast.literal_eval(accepted[1]))
    shown += capfd.readouterr().err
    assert "accepted at step 2" in shown
    assert not set(escape) & (set(shown) - set("]0;owned2J"))


def test_a_state_that_does_not_fit_steers_no_terminal(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, lanes=1) as run:
        model = nn.Linear(1, 1)
        model.register_buffer("\x1b[2J", torch.ones(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader([torch.ones(1)] * 2, batch_size=2), epochs=1):
            for x in step:
                step.backward(model(x).sum())
            step.update(optimizer)
    with ts.Run(tmp_path, seed=1, lanes=1) as run:
        model = nn.Linear(1, 1)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(StateError, match=r"cannot take the state") as refused:
            run.steps(ts.Loader([torch.ones(1)] * 2, batch_size=2), epochs=1)
    assert "\x1b" not in "".join(traceback.format_exception(refused.value))


def test_a_record_and_its_report_have_no_secret_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--api-key=s3cret", "--password", "s3cret"])
    train(tmp_path)
    assert "s3cret" not in (tmp_path / "record.jsonl").read_text()
    record = Record(tmp_path / "record.jsonl")  # by an earlier version
    record.write("start", version=1, cursor=2, argv=["train.py", "--token", "s3cret"])
    record.close()
    page = write_report(tmp_path).read_text()
    assert "s3cret" not in page and "--token ***" in page and "--password ***" in page


def test_a_refused_folder_can_be_used_once_the_link_is_gone(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "snapshots").symlink_to("../theirs")
    with pytest.raises(FolderUnusable, match=r"run/snapshots is a symbolic link.*Delete it or move it away"):
        train(tmp_path / "run")
    (tmp_path / "run" / "snapshots").unlink()
    train(tmp_path / "run")


def test_a_run_folder_that_is_a_link_of_the_users_own_is_used(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    train(tmp_path / "run")
    assert write_report(tmp_path / "run").is_file()
    assert (tmp_path / "disk" / "report.html").is_file()


def test_a_snapshots_folder_that_cannot_be_listed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "snapshots").mkdir()
    monkeypatch.setattr(os, "listdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(FolderUnusable, match=r"snapshots cannot be written \(Permission denied\)"):
        train(tmp_path)


def test_a_pipe_named_like_a_runs_file_does_not_hold_the_copy_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "run.json")
    with Scratch(tmp_path) as scratch:
        assert (scratch.renew() / "run" / "run.json").is_symlink()


def test_what_a_command_prints_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Page().print("name \x1b[2J", ("value \x9b2J\n", "bold"))
    assert capsys.readouterr().out == "name \ufffd[2Jvalue \ufffd2J\n\n"


@pytest.mark.parametrize("folder", ["/sys/kernel", "/sys/kernel/truestep-run", "/dev/null/run"])
def test_a_folder_that_cannot_be_written_is_told_with_what_to_do(folder: str) -> None:
    with pytest.raises(FolderUnusable, match=rf"{folder}.* cannot be written \(.*\).*use another folder"):
        ts.Run(folder, seed=1)


@pytest.mark.parametrize("kind", ["pipe", "folder", "deep", "long number", "large"])
def test_a_plain_file_that_is_none_is_told_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(plainfile.MAX_BYTES + 1)  # a file of holes takes no room on the disk
    else:
        path.write_text("[" * DEEP + "]" * DEEP if kind == "deep" else '{"id": ' + "9" * 5000 + "}")
    with pytest.raises(TruestepError, match=r"run.json is damaged"):
        ts.Run(tmp_path, seed=1)


def test_doctor_runs_nothing_of_the_folder_it_is_asked_in(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.truestep.check]\nrules = ["rules"]\nignore = ["their-own"]\n'
    )
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "their_own.py").write_text("open('harmed', 'w')\n")
    (tmp_path / "torch.py").write_text("open('harmed', 'w')\n")
    # As the installed script starts it: with `python -m` Python itself imports from the working folder.
    words = [sys.executable, "-P", "-m", "truestep", "doctor"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    assert not (tmp_path / "harmed").exists()


def test_a_record_cannot_put_code_or_files_of_others_into_its_report(tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR" + b"\x00\x00\x00\x01" * 2 + b"SECRET" * 8)
    run = tmp_path / "run"
    run.mkdir()
    (run / "link.png").symlink_to(secret)
    script = "<script>alert(1)</script>"
    events = [
        {"kind": "start", "time_s": 1, "cursor": 0, "recipe": {script: script}, "fingerprint": {}},
        {"kind": "steps", "time_s": 2, "first": 0, "loss": [1.0, 2.0], "end_us": [1, 2]},
        {"kind": "text", "time_s": 2, "name": script, "cursor": 1, "text": script},
        {
            "kind": "picture",
            "time_s": 2,
            "name": "p",
            "cursor": 1,
            "file": "../secret.png",
            "width": 1,
            "height": 1,
        },
        {
            "kind": "picture",
            "time_s": 2,
            "name": "q",
            "cursor": 1,
            "file": "link.png",
            "width": 1,
            "height": 1,
        },
        {"kind": "made up", "x": script},
    ]
    (run / "record.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
    done = commands("report", ".", folder=run)
    assert done.returncode == 0, done.stderr
    page = (run / "report.html").read_text()
    assert script not in page and "&lt;script&gt;alert(1)" in page
    assert "U0VDUkVU" not in page and "SECRET" not in page  # in base64 too
