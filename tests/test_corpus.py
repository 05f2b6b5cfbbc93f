"""The corpus of scripts that do not repeat: the index fits, and some of them shown. All: corpus/prove.py."""

import ast
import contextlib
import difflib
import importlib.util
import io
import itertools
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_processes

FOLDER = Path(__file__).parents[1] / "benchmarks" / "corpus"


def load_cases() -> dict[str, Any]:
    """Load the index by its path, so that no folder of benchmarks stays on the import path."""
    spec = importlib.util.spec_from_file_location("corpus_index", FOLDER / "index.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return {case.cause: case for case in module.CASES}


CASES = load_cases()


def imported_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_index_names_every_script_and_every_twin() -> None:
    assert len(CASES) == 26
    names = sorted(case.script.name for case in CASES.values())
    assert sorted(path.name for path in (FOLDER / "causes").glob("*.py")) == names
    assert sorted(f"{path.stem}.py" for path in (FOLDER / "patches").iterdir()) == names


@pytest.mark.parametrize("cause", CASES)
def test_script_and_twin_are_the_users_own_and_differ_in_a_few_lines(cause: str) -> None:
    case = CASES[cause]
    script, twin = case.script.read_text(), case.twin.read_text()
    assert case.lines and len(case.lines) == script.count("# <- here") and "# <- here" not in twin
    assert set(imported_in(script)) | set(imported_in(twin)) <= {*sys.stdlib_module_names, "numpy", "torch"}
    unmarked = script.replace("  # <- here", "")
    changed = [
        line for line in difflib.ndiff(unmarked.splitlines(), twin.splitlines()) if line[:2] in {"- ", "+ "}
    ]
    assert 0 < len(changed) <= 18, changed


def weights_of(script: str, folder: str, kill_after: int) -> str:
    """Run a script in this process and folder; return the digest it prints, unless it is killed first."""
    os.chdir(folder)
    output = io.StringIO()
    sys.argv = [script]
    with contextlib.redirect_stdout(output):
        if kill_after:
            sys.argv = ["kill_after.py", str(kill_after), script]
            script = str(FOLDER / "kill_after.py")
        runpy.run_path(script, run_name="__main__")
    last = output.getvalue().splitlines()[-1]
    assert last.startswith("weights ")
    return last


def run_in(folder: Path, script: Path, *, kill_after: int = 0) -> str:
    folder.mkdir(exist_ok=True)
    (found,) = run_processes(weights_of, str(script), str(folder), kill_after, size=1)
    return str(found)


@pytest.mark.parametrize("cause", ["seeded-from-time", "listing-order", "thread-race"])
def test_running_again_changes_the_weights_of_the_script_only(cause: str, tmp_path: Path) -> None:
    case = CASES[cause]
    assert case.mode == "twice"
    scripts = [run_in(tmp_path / f"script {number}", case.script) for number in range(3)]
    twins = [run_in(tmp_path / f"twin {number}", case.twin) for number in range(3)]
    assert any(first != second for first, second in itertools.pairwise(scripts))
    assert len(set(twins)) == 1


def test_a_kill_changes_the_weights_of_the_script_only(tmp_path: Path) -> None:
    case = CASES["optimizer-not-saved"]
    found = {}
    for script in (case.script, case.twin):
        name = script.parent.name
        whole = run_in(tmp_path / f"{name} whole", script)
        with pytest.raises(RuntimeError, match="died without an answer"):
            run_in(tmp_path / f"{name} killed", script, kill_after=case.kill_after)
        found[name] = whole == run_in(tmp_path / f"{name} killed", script)
    assert found == {"causes": False, "twins": True}


def prove(cause: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "prove.py"), "--only", cause, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)


def test_an_unknown_cause_is_refused_with_those_there_are() -> None:
    done = prove("full-moon")
    assert done.returncode == 2
    assert "no such cause: full-moon. Choose from unseeded-torch, unseeded-numpy" in done.stderr
