"""A run that is forked from a process with torch imported is like one that was started cold."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import preloaded
from tests.watch.both import differences, odd_cases, run
from truestep.watch import Plan, Script
from truestep.watch.launch.leading import COLD_FILE, leading_imports
from truestep.watch.launch.preloaded import Preloaded

CASES = {case.name: case for case in odd_cases()}
_NOT_COMPARED = ("compiled", "symbolic", "printing_thread", "frames", "interpreter", "logged")
"""Scripts that print addresses, times, or what the preloaded Python of the tests has."""
FAST = ("alarm", "at_exit", "at_fork", "children", "modules", "processes_spawn", "standard_input", "streams")
SLOW = [name for name in CASES if name not in (*FAST, *_NOT_COMPARED)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("forked")
    (place / "work").mkdir()
    return place


@pytest.fixture(scope="module")
def starting(folder: Path) -> Iterator[Preloaded]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", preloaded.REAL)
        process = Preloaded(Script(path="none.py"), folder=folder / "work", environment={}, frozen=())
    assert process.wait() == ""
    yield process
    process.close()


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_an_odd_script_cannot_tell_that_it_is_forked(folder: Path, starting: Preloaded, name: str) -> None:
    case = CASES[name]
    cold = run(case, folder, is_watched=True)
    warm = run(case, folder, is_watched=True, starting=starting)
    assert not (folder / "evidence" / COLD_FILE).exists(), (folder / "evidence" / COLD_FILE).read_text()
    differing = differences(case, cold, warm)
    assert not differing, "\n".join(differing)


REFUSED = {
    "sets OMP_NUM_THREADS before it imports torch": "os.environ['OMP_NUM_THREADS'] = '3'\nimport torch\n",
    "sets TORCHDYNAMO_X": "import torch\nos.environ['TORCHDYNAMO_X'] = '1'\nimport torch._dynamo\n",
    "chooses its cores": "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nimport torch\n",
    "replaces modules": "import sys, queue\nsys.modules['queue'] = sys\nimport torch\n",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_script_that_an_import_would_have_noticed_is_refused(
    folder: Path, starting: Preloaded, reason: str, tmp_path: Path
) -> None:
    if "cores" in reason and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("one core")
    start(folder, starting, f"import os\n{REFUSED[reason]}", evidence=tmp_path)
    assert reason in (tmp_path / COLD_FILE).read_text()


def test_a_file_beside_the_script_that_stands_in_for_a_module_is_refused(
    folder: Path, starting: Preloaded, tmp_path: Path
) -> None:
    (folder / "work" / "sympy.py").write_text("")
    start(folder, starting, "import torch\n", evidence=tmp_path)
    assert (tmp_path / COLD_FILE).read_text().startswith("sympy.py in the script's folder stands in for")


def test_modules_are_hidden_until_they_are_imported(
    folder: Path, starting: Preloaded, tmp_path: Path
) -> None:
    text = (
        "import sys\n"
        "print([name for name in ('numpy', 'torch', 'torch._dynamo') if name in sys.modules])\n"
        "import numpy\n"
        "print('numpy' in sys.modules, 'torch' in sys.modules)\n"
        "import torch\n"
        "print('torch.nn' in sys.modules, 'torch._dynamo' in sys.modules, '_dynamo' in vars(torch))\n"
        "print(torch.__spec__.name, torch.nn.Linear(2, 2)(torch.ones(1, 2)).shape)\n"
        "print(torch._dynamo.__spec__.name)\n"
    )
    lines = start(folder, starting, text, evidence=tmp_path).splitlines()
    assert lines == ["[]", "True False", "True False False", "torch torch.Size([1, 2])", "torch._dynamo"]


def test_forks_draw_other_numbers_unless_they_are_seeded(
    folder: Path, starting: Preloaded, tmp_path: Path
) -> None:
    text = "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.rand(1).item())\n"
    drawn = [start(folder, starting, text, evidence=tmp_path).split() for _ in range(2)]
    assert all(one != other for one, other in zip(*drawn, strict=True))


def test_the_imports_of_a_script_are_read(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text(
        "import os, numpy as np\nfrom torch import nn, optim\nfrom . import x\nimport mine\n"
        "def f():\n    import pandas\n"
    )
    assert leading_imports(str(script)) == [["numpy"], ["torch", "nn", "optim"]]
    assert leading_imports(str(tmp_path / "none.py")) == []


def start(folder: Path, starting: Preloaded, text: str, *, evidence: Path) -> str:
    (folder / "work").mkdir(exist_ok=True)
    (folder / "work" / "script.py").write_text(text)
    with (evidence / "output.txt").open("w+") as output:
        forked = starting.start(
            Script(path="script.py"), plan=Plan(), folder=evidence, stdout=output, stderr=output
        )
        assert forked is not None
        forked.wait(120)
        output.seek(0)
        printed = output.read()
    (folder / "work" / "sympy.py").unlink(missing_ok=True)
    return printed
