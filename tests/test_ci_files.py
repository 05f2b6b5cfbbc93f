"""Files that other people's CI reads: the action and the hook call `truestep check` as it is."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tests.test_docs import strange_options
from truestep.cli import build_app

ROOT = Path(__file__).parent.parent


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def run_action(folder: Path, **inputs: str) -> list[str]:
    """Run the action's last step with a truestep that prints its arguments; return them."""
    step = read("action.yml")["runs"]["steps"][-1]
    given = {name: item.get("default", "") for name, item in read("action.yml")["inputs"].items()} | inputs
    environment = {
        name: given[text.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, text in step["env"].items()
    }
    fake = folder / "truestep"
    fake.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    fake.chmod(0o755)
    environment |= {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    # As GitHub starts it for `shell: bash`.
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout.splitlines()


def test_the_action_passes_its_inputs_on_word_by_word(tmp_path: Path) -> None:
    words = run_action(tmp_path, script="my train.py", arguments="--name 'two words' --lr 0.1")
    assert words[:2] == ["check", "--format"]
    assert words[2:] == [
        *("github", "--steps", "20", "--timeout", "600", "my train.py", "--name", "two words", "--lr", "0.1")
    ]


@pytest.mark.parametrize("text", ["$(touch ran)", "`touch ran`", "; touch ran", "&& touch ran"])
def test_nothing_in_the_inputs_of_the_action_is_run(tmp_path: Path, text: str) -> None:
    run_action(tmp_path, script=text, arguments=text, options=text)
    assert not (tmp_path / "ran").exists()


def test_no_input_stands_in_the_code_of_the_action() -> None:
    assert all("${{" not in step["run"] for step in read("action.yml")["runs"]["steps"])


def test_action_and_hook_use_options_that_exist(tmp_path: Path) -> None:
    commands = typer.main.get_command(build_app()).commands  # type: ignore[attr-defined]
    (hook,) = read(".pre-commit-hooks.yaml")
    calls = [["truestep", *run_action(tmp_path, script="train.py")], shlex.split(hook["entry"] + " train.py")]
    assert [what for words in calls for what in strange_options(words, commands)] == []
