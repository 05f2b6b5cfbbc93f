"""What needs an extra that is not installed says so in one sentence, with the command that installs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_house import PROJECT

HIDING = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == {package!r} else found(name, package)
"""
RECORD = (
    '{"kind": "open", "format": 2, "t": 1.0, "id": "a", "session": "b", "cursor": 0}\n'
    '{"kind": "step", "t": 2.0, "step": 1, "loss": 0.5}\n'
)
SHARDS = "import truestep; truestep.Shards('memory://shards/a.tar', index='memory://shards/index.json')"
CALLS = {
    "parquet": ("pyarrow", ["-c", "from truestep.base import arrow; arrow.count_parquet('a.parquet')"]),
    "tensorboard": ("tensorboard", ["-m", "truestep", "export", ".", "--to", "tensorboard"]),
    "shards": ("fsspec", ["-c", SHARDS]),
    "mcp": ("mcp", ["-m", "truestep", "mcp"]),
}
"""By extra: the package that is hidden, and a call that needs it."""


def run_without(package: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    hiding = folder / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(HIDING.format(package=package))
    (folder / "record.jsonl").write_text(RECORD)
    path = os.pathsep.join([str(hiding), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
    )


@pytest.mark.parametrize("extra", CALLS)
def test_an_extra_that_is_missing_is_told_in_one_sentence(tmp_path: Path, extra: str) -> None:
    package, arguments = CALLS[extra]
    done = run_without(package, arguments, tmp_path)
    last = done.stderr.rstrip().splitlines()[-1]
    expected = rf"needs? {package}\. Install it: pip install 'truestep\[{extra}\]'$"
    assert re.search(expected, last), done.stderr
    is_command = arguments[0] == "-m"
    assert done.returncode == (2 if is_command else 1)
    assert (done.stderr.count("\n") == 1) is is_command, "a command shows the sentence and nothing else"


def test_every_extra_that_users_install_is_asked_here() -> None:
    # torchmetrics is handed in by the user's script: truestep imports it nowhere. py-spy is a program, not a
    # module: tests/hang/test_attach.py.
    for_developers = {"test", "check", "bench", "docs", "metrics", "attach"}
    assert set(PROJECT["project"]["optional-dependencies"]) - for_developers == set(CALLS)
