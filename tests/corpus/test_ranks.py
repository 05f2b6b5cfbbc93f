"""Jobs of several processes: a buggy script for each rule, some correct ones. All: check_corpus.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gathering import expected, server_of
from truestep.rules import find_rules

HERE = Path(__file__).parent / "ranks"
BUGGY, CLEAN = (sorted((HERE / name).glob("*.py")) for name in ("buggy", "clean"))
FIRST = {path.stem.partition("_")[0]: path for path in reversed(BUGGY)}
"""One script for each rule."""


def found_in(script: Path, folder: Path) -> dict[str, set[int]]:
    """Return the lines of what `truestep check` finds in a job, by code."""
    text = script.read_text()
    _, _, rest = text.partition("# processes: ")
    words = [sys.executable, "-m", "truestep", "check", "-v", "--format", "json"]
    words += ["--processes", rest.split()[0] if rest else "2", str(script)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRUESTEP_TESTS_SERVER": server_of(script)}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    answer = json.loads(done.stdout)
    assert answer["failed_rules"] == answer["failed_observers"] == [], done.stderr
    found: dict[str, set[int]] = {}
    for item in answer["findings"]:
        if item["severity"] != "info":
            found.setdefault(item["code"], set()).add(item["line"])
    return found


def test_every_rule_about_ranks_has_scripts() -> None:
    codes = {rule.meta.code.lower() for rule in find_rules() if rule.meta.code.startswith("DIST")}
    assert set(FIRST) == codes
    assert len(CLEAN) >= 30
    assert all(set(expected(path.read_text())) == {path.stem[:6].upper()} for path in BUGGY)
    assert not [path for path in CLEAN if expected(path.read_text())]


@pytest.mark.slow
@pytest.mark.parametrize("path", FIRST.values(), ids=lambda path: path.stem)
def test_a_mistake_of_a_job_is_found_at_its_line(path: Path, tmp_path: Path) -> None:
    ((code, lines),) = expected(path.read_text()).items()
    found = found_in(path, tmp_path)
    assert set(found) == {code} and found[code] <= lines


@pytest.mark.slow
@pytest.mark.parametrize("path", CLEAN[::4], ids=lambda path: path.stem)
def test_a_correct_job_is_not_reported(path: Path, tmp_path: Path) -> None:
    assert found_in(path, tmp_path) == {}
