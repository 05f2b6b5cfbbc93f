"""How a script is started, whatever lies in the working folder, and what to type if that was wrong."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.check.test_check import MENDED, check, write
from truestep.check.hints import hint_for
from truestep.watch import Script

JOINED = "import torch.distributed as dist\ndist.init_process_group('gloo')\n" + MENDED
SHADOW = 'raise ImportError("from the working folder")\n'


@pytest.mark.cold
def test_a_file_in_the_working_folder_does_not_stand_in_for_a_module_of_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text(SHADOW)
    (tmp_path / "s").mkdir()
    write(tmp_path / "s", JOINED)
    done = check(tmp_path, "--processes", "1", "s/train.py")
    assert done.returncode == 0 and "nothing found in 6 steps" in done.stdout, done.stdout + done.stderr


@pytest.mark.cold
def test_a_launcher_that_fails_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shadows").mkdir()
    (tmp_path / "shadows" / "queue.py").write_text(SHADOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shadows"), prepend=os.pathsep)
    write(tmp_path, JOINED)
    done = check(tmp_path, "--processes", "2", "train.py")
    assert done.returncode == 2 and "nothing found" not in done.stdout, done.stdout
    assert "the script was not started: torchrun failed (exit code 1)" in done.stdout, done.stderr


@pytest.mark.cold
def test_nothing_is_imported_from_the_working_folder_for_a_tool_of_mcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp")
    from truestep.cli import _tools

    (tmp_path / "typer.py").write_text(SHADOW)
    monkeypatch.chdir(tmp_path)
    answer = asyncio.run(_tools.rule("LOOP01"))
    assert answer["exit_code"] == 0 and "working folder" not in answer["log"]


@pytest.mark.parametrize(
    "error", ["KeyError: 'LOCAL_RANK'", "environment variable RANK expected, but not set"]
)
def test_a_script_that_needs_a_rank_gets_the_command(error: str) -> None:
    script = Script(path="train.py", arguments=("--lr", "1 2"))
    found = hint_for(script, error, is_under_torchrun=False)
    assert found.endswith("truestep check --processes 2 train.py --lr '1 2'")
    assert not hint_for(script, error, is_under_torchrun=True)
    assert not hint_for(script, "KeyError: 'rank'", is_under_torchrun=False)


@pytest.mark.parametrize(
    ("path", "is_package", "command"),
    [
        ("pkg/train.py", False, "truestep check -m pkg.train"),
        ("pkg/sub/train.py", True, "truestep check -m pkg.sub.train"),
        ("train.py", False, "cd {parent} && truestep check -m {name}.train"),
    ],
)
def test_a_module_started_as_a_file_gets_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, is_package: bool, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    for folder in [*Path(path).parents][:-1] if is_package else ():
        (folder / "__init__.py").touch()
    error = "ImportError: attempted relative import with no known parent package"
    found = hint_for(Script(path=path), error, is_under_torchrun=False)
    assert found.endswith(": " + command.format(parent=tmp_path.parent, name=tmp_path.name))


def test_the_hint_is_part_of_the_answer(tmp_path: Path) -> None:
    write(tmp_path, JOINED)
    done = check(tmp_path, "train.py")
    assert done.returncode == 2
    assert "It has to be started by torchrun: truestep check --processes 2 train.py" in done.stdout, (
        done.stdout
    )
