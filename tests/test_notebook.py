"""Magics in IPython and in a real kernel, and `truestep check notebook.ipynb`."""

import json
import subprocess
import sys

import nbclient
import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

import truestep

SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
LOOP = """\
for _ in range(3):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
"""
CORRECT = LOOP.replace("    loss.backward", "    optimizer.zero_grad()\n    loss.backward")


@pytest.fixture
def shell(monkeypatch):
    monkeypatch.setattr(sys, "displayhook", sys.displayhook)
    shell = InteractiveShell.instance(warn_venv=False, history_load_length=0)
    shell.history_manager.enabled = False
    shell.run_line_magic("load_ext", "truestep")
    shell.run_cell(SETUP, store_history=True).raise_error()
    yield shell
    InteractiveShell.clear_instance()


@pytest.fixture
def run(shell, capsys):
    """Run a cell and return what it prints."""

    def printed(cell):
        shell.run_cell(cell, store_history=True)
        return capsys.readouterr().out

    return printed


def test_magic_checks_a_cell_and_prints_its_findings(shell, run):
    answer = run("%%truestep check\n" + LOOP + "found = 5\n")
    assert answer.rstrip().endswith("truestep: 1 error in 3 steps")
    number = len(shell.user_ns["In"]) - 1
    assert f"error  LOOP01 stale-gradients\n  cell In[{number}], line 5\n    loss.backward()" in answer
    assert "zero_grad() is missing" in answer
    assert shell.user_ns["found"] == 5  # the cell ran in the notebook's own namespace


def test_magic_takes_rules(run):
    assert "LOOP01" not in run("%%truestep check --ignore LOOP01\n" + LOOP)
    assert "LOOP01" not in run("%%truestep check --select=LOSS,PAR\n" + LOOP)


def test_cell_that_fails_is_inconclusive_and_leaves_no_hook(run):
    answer = run("%%truestep check\n" + LOOP + "1 / 0\n")
    assert "inconclusive: the block ended with ZeroDivisionError" in answer
    assert "error  LOOP01" in answer
    assert "truestep: nothing found in 3 steps" in run("%%truestep check\n" + CORRECT)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%truestep", "no such magic"),
        ("%truestep check", "no such magic"),
        ("%%truestep tune\n1", "no such magic"),
        ("%%truestep check --steps 5\n1", "--select RULES and --ignore RULES"),
        ("%%truestep check --select NOPE\n1", "unknown rule"),
    ],
)
def test_wrong_use_is_explained_without_a_traceback(run, cell, words):
    printed = run(cell)
    assert words in printed
    assert "Traceback" not in printed


@pytest.mark.slow
@pytest.mark.cold
def test_magics_in_a_real_kernel(tmp_path):
    cells = ["%load_ext truestep\n" + SETUP, "%%truestep check\n" + LOOP]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert "cell In[2], line 5" in notebook.cells[1].outputs[-1].text


@pytest.mark.slow
def test_command_checks_a_notebook(tmp_path):
    cells = ["%matplotlib inline\n" + SETUP, LOOP + "display(model)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    path = tmp_path / "experiment.ipynb"
    nbformat.write(notebook, path)
    before = path.read_bytes()
    words = [sys.executable, "-m", "truestep", "check"]
    done = subprocess.run([*words, path.name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "experiment.ipynb, cell 2, line 4" in done.stdout
    assert "loss.backward()" in done.stdout
    fixed = subprocess.run(
        [*words, "--fix", "--format", "json", path.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(fixed.stdout)["findings"][0]["code"] == "LOOP01"
    assert path.read_bytes() == before


def test_extension_is_no_public_name():
    assert "load_ipython_extension" not in truestep.__all__
