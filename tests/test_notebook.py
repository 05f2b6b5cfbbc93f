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


def run(shell, cell):
    """Return what the cell displays as its value."""
    shell.run_cell(cell, store_history=True)
    return shell.user_ns["Out"].get(len(shell.user_ns["In"]) - 1)


def test_magic_checks_a_cell_and_returns_a_table(shell, capsys):
    table = run(shell, "%%truestep check\n" + LOOP + "found = 5\n")
    assert table.title == "truestep: 1 error in 3 steps"
    assert table.rows[0][0] == "error LOOP01"
    number = len(shell.user_ns["In"]) - 1
    assert table.rows[0][1] == f"cell In[{number}], line 5\nloss.backward()"
    assert "zero_grad() is missing" in repr(table)
    page = table._repr_html_()
    assert "<table>" in page
    assert "error LOOP01" in page
    assert shell.user_ns["found"] == 5  # the cell ran in the notebook's own namespace


def test_magic_takes_rules(shell):
    assert run(shell, "%%truestep check --ignore LOOP01\n" + LOOP).rows == []
    assert run(shell, "%%truestep check --select=LOSS,PAR\n" + LOOP).rows == []


def test_cell_that_fails_is_inconclusive_and_leaves_no_hook(shell):
    table = run(shell, "%%truestep check\n" + LOOP + "1 / 0\n")
    assert "inconclusive: the block ended with ZeroDivisionError" in table.title
    assert table.rows[0][0] == "error LOOP01"
    assert run(shell, "%%truestep check\n" + CORRECT).title == "truestep: nothing found in 3 steps"


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
def test_wrong_use_is_explained_without_a_traceback(shell, capsys, cell, words):
    assert run(shell, cell) is None
    assert words in capsys.readouterr().out


def test_text_in_a_table_is_escaped():
    from truestep.notebook import Table

    page = Table("<b>", ("a",), rows=[("<script>",)], text="")._repr_html_()
    assert "<script>" not in page
    assert "&lt;b&gt;" in page


@pytest.mark.slow
@pytest.mark.cold
def test_magics_in_a_real_kernel(tmp_path):
    cells = ["%load_ext truestep\n" + SETUP, "%%truestep check\n" + LOOP, "%truestep verify"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    check, verify = (cell.outputs[-1].data for cell in notebook.cells[1:])
    assert "cell In[2], line 5" in check["text/html"]
    assert "same in all " in verify["text/plain"]
    assert "<table>" in verify["text/html"]


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
