"""What a script takes from outside is noted at its line, and handed on unchanged."""

import os
import re
from pathlib import Path

import pytest

from tests.watch.watching import SCRIPTS, run_bare, run_watched
from truestep import watch
from truestep.watch.evidence.facts.surroundings import SourceRead
from truestep.watch.hooks.sources import text_of

SCRIPT = SCRIPTS / "outside.py"
ENVIRONMENT = {"TRUESTEP_TEST": "set", "TRUESTEP_TOKEN": "nobody may read this"}
NAMES = [f"file-{(number * 7) % 30:02d}" for number in range(30)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name in NAMES:
        (folder / name).touch()
    return folder


@pytest.fixture(scope="module")
def process(files: Path, tmp_path_factory: pytest.TempPathFactory) -> watch.Process:
    folder = tmp_path_factory.mktemp("evidence")
    options = {"env": os.environ | ENVIRONMENT}
    bare = run_bare(SCRIPT, str(files), **options)
    assert bare.code == 0, bare.stderr
    done = run_watched(SCRIPT, str(files), folder=folder, plan=watch.Plan(sources=True), **options)
    assert (done.code, done.stdout, done.stderr) == (0, bare.stdout, bare.stderr)
    (found,) = watch.read(folder)
    return found


def noted(process: watch.Process, what: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for moment in process.of(SourceRead):
        if moment.facts.what == what:
            found.setdefault(moment.facts.name, []).append(moment.facts.result)
    return found


def test_each_reading_is_noted_at_its_line(process: watch.Process) -> None:
    expected: dict[str, set[int]] = {}
    for number, line in enumerate(SCRIPT.read_text().splitlines(), start=1):
        if match := re.search(r"# -> ([a-z]+)$", line):
            expected.setdefault(match[1], set()).add(number)
    found: dict[str, set[int]] = {}
    for moment in process.of(SourceRead):
        assert moment.file == str(SCRIPT)
        found.setdefault(moment.facts.what, set()).add(moment.line or 0)
    assert found == expected


def test_names_are_those_that_the_script_calls(process: watch.Process) -> None:
    assert set(noted(process, "clock")) == {"time.time", "time.perf_counter_ns"}
    entropy = {"os.urandom", "uuid.uuid4", "secrets.token_hex", "random.Random"}
    assert entropy | {"numpy.random.default_rng"} <= set(noted(process, "entropy"))
    assert set(noted(process, "random")) == {"random.shuffle", "random.choice", "random.random"}
    assert set(noted(process, "numpy")) == {"numpy.random.rand", "numpy.random.permutation"}
    assert noted(process, "pid") == {"os.getpid": [str(process.pid)]}


def test_variables_are_noted_and_secrets_are_not_told(process: watch.Process) -> None:
    found = noted(process, "environment")
    assert found["TRUESTEP_TEST"] == ["'set'"] * 3
    assert found["TRUESTEP_NONE"] == ["None"] * 4
    assert len(found["TRUESTEP_TOKEN"]) == 3
    assert not any("nobody" in value for value in found["TRUESTEP_TOKEN"])


def test_listings_show_their_order(process: watch.Process, files: Path) -> None:
    found, names = noted(process, "listing"), [path.name for path in files.iterdir()]
    whole = text_of(names)
    assert found.pop("os.scandir") == [whole] * 2
    assert found == {
        name: [whole]
        for name in ("os.listdir", "pathlib.Path.glob", "pathlib.Path.iterdir", "glob.glob", "os.walk")
    }


class Odd:
    def __repr__(self) -> str:
        raise AssertionError("code of the user's is not run")


def test_long_values_are_cut_and_their_order_shows() -> None:
    one, other = list(range(1000)), [*range(998), 999, 998]
    assert len(text_of(one)) == len(text_of(other)) == 200
    assert text_of(one) != text_of(other)
    assert text_of([Odd(), 1, "a", None]) == "[<Odd>, 1, 'a', None]"


def test_many_readings_at_one_line_are_not_all_kept(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import random\nfor _ in range(3000):\n    random.random()\n")
    assert run_watched(script, folder=tmp_path, plan=watch.Plan(sources=True)).code == 0
    (process,) = watch.read(tmp_path)
    assert len(process.of(SourceRead)) == 1000


def test_nothing_is_noted_unless_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, time\ntime.time()\nos.getpid()\nprint(time.time)\n")
    assert run_watched(script, folder=tmp_path).stdout == run_bare(script).stdout
    (process,) = watch.read(tmp_path)
    assert process.of(SourceRead) == []


def test_bits_stay(tmp_path: Path) -> None:
    arguments = [str(tmp_path / "model.pt"), "0"]
    bare = run_bare(SCRIPTS / "plain.py", *arguments)
    plan = watch.Plan(sources=True, digests=watch.DIGESTS)
    done = run_watched(SCRIPTS / "plain.py", *arguments, folder=tmp_path, plan=plan)
    assert (done.code, done.stdout) == (0, bare.stdout), done.stderr
