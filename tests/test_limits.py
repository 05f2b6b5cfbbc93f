"""scripts/limits.py: each limit lets the allowed pass and stops one more."""

import subprocess
import sys
from pathlib import Path

import pytest

LIMITS = Path(__file__).parent.parent / "scripts" / "limits.py"
DOC = '"""Owns something."""\n'


def report(root: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(LIMITS), str(root)], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def report_on(root: Path, source: str, name: str = "src/thing.py") -> tuple[int, str]:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return report(root)


def function_of(num_lines: int) -> str:
    return "def work():\n" + "    pass\n" * (num_lines - 1)


def run_class(num_methods: int) -> str:
    methods = "".join(f"    def act_{index}(self): ...\n" for index in range(num_methods))
    return f"class Run:\n    @property\n    def folder(self): ...\n    def _private(self): ...\n{methods}"


ALLOWED = {
    "a function of 60 lines": DOC + function_of(60),
    "a file of 600 lines": DOC + "x = 1\n" * 599,
    "two by position": DOC + "def call(a, b, *rest, c=1): ...\n",
    "eight in all": DOC + "def call(a, b, *, c, d, e, f, g, h): ...\n",
    "self is not counted": DOC + "class A:\n    def __init__(self, a, b, *, c, d, e, f, g, h): ...\n",
    "a private function": DOC + "def _call(a, b, c): ...\n",
    "a protocol of the language": DOC + "class A:\n    def __exit__(self, kind, error, trace): ...\n",
    "a signature fixed by torch": DOC + "def hook(a, b, c):  # limits: torch calls it like this\n    ...\n",
    "keyword-only dataclass": DOC
    + "@dataclass(frozen=True, kw_only=True)\nclass A:\n    a: int\n    b: int\n    c: int\n",
    "a Run of 12 methods": DOC + run_class(12),
    "a docstring of 5 lines": '"""1\n2\n\n3\n4\n5\n"""\n',
}

STOPPED = {
    "src/thing.py:2: work has 61 lines, at most 60": DOC + function_of(61),
    "src/thing.py:1: file has 601 lines, at most 600": DOC + "x = 1\n" * 600,
    "src/thing.py:2: call takes 3 by position, at most 2": DOC + "def call(a, b, c): ...\n",
    "src/thing.py:2: call takes 9 arguments, at most 8": DOC
    + "def call(a, *, b, c, d, e, f, g, h, i): ...\n",
    "src/thing.py:3: A.act takes 3 by position": DOC + "class A:\n    def act(self, a, b, c): ...\n",
    "src/thing.py:3: Run.__init__ takes 9 arguments": DOC
    + "class Run:\n    def __init__(self, a, *, b, c, d, e, f, g, h, i): ...\n",
    "src/thing.py:4: A.act takes 3 by position": DOC
    + "class A:\n    @staticmethod\n    def act(a, b, c): ...\n",
    "src/thing.py:2: hook takes 3 by position": DOC + "def hook(a, b, c):  # limits:\n    ...\n",
    "src/thing.py:3: A has 3 fields by position": DOC
    + "@dataclass\nclass A:\n    a: int\n    b: int\n    c: int\n",
    "src/thing.py:2: Run has 13 public methods, at most 12": DOC + run_class(13),
    "src/thing.py:1: no module docstring": "x = 1\n",
    "src/thing.py:1: module docstring has 6 lines, at most 5": '"""1\n2\n3\n4\n5\n6\n"""\n',
}


@pytest.mark.parametrize("source", ALLOWED.values(), ids=ALLOWED.keys())
def test_allowed_code_passes(tmp_path: Path, source: str) -> None:
    assert report_on(tmp_path, source) == (0, "limits: all kept\n")


@pytest.mark.parametrize(("message", "source"), STOPPED.items(), ids=STOPPED.keys())
def test_broken_limit_is_stopped_with_its_place(tmp_path: Path, message: str, source: str) -> None:
    code, output = report_on(tmp_path, source)
    assert code == 1
    assert message in output
    assert "limits: 1 broken" in output


@pytest.mark.parametrize("name", ["utils.py", "_helpers.py", "data_common.py", "manager/thing.py", "misc.py"])
def test_vague_module_name_is_stopped(tmp_path: Path, name: str) -> None:
    code, output = report_on(tmp_path, DOC, f"src/truestep/{name}")
    assert code == 1
    assert "names a role" in output


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "examples", "scripts"])
def test_outside_the_package_only_sizes_count(tmp_path: Path, folder: str) -> None:
    assert report_on(tmp_path, "def call(a, b, c): ...\n", f"{folder}/helpers.py")[0] == 0
    assert report_on(tmp_path, function_of(61), f"{folder}/long.py")[0] == 1


def test_a_file_left_behind_by_a_merge_is_refused(tmp_path: Path) -> None:
    code, output = report_on(tmp_path, "x = 1\n", "src/thing.py.orig")
    assert code == 1
    assert "src/thing.py.orig:1: left behind by an editor or a merge: remove it" in output
