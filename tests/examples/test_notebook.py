"""examples/notebook.ipynb runs from top to bottom in a kernel, and shows in its cells what it promises."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def outputs(notebook: Any, start: str) -> list[Any]:
    (cell,) = [cell for cell in notebook.cells if cell.source.startswith(start)]
    return list(cell.outputs)


def shown(notebook: Any, start: str, kind: str) -> str:
    """Return what the cell that starts so shows as text, HTML or picture."""
    return "".join(found.data[kind] for found in outputs(notebook, start) if kind in found.get("data", {}))


def printed(notebook: Any, start: str) -> str:
    return "".join(found.text for found in outputs(notebook, start) if found.output_type == "stream")


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    patch = pytest.MonkeyPatch()
    patch.setenv("PATH", path)  # for `!truestep`
    resources = {"metadata": {"path": str(folder)}}
    try:
        nbclient.NotebookClient(notebook, timeout=240, resources=resources).execute()
    finally:
        patch.undo()
    return notebook


def test_it_is_kept_without_outputs() -> None:
    nbformat = pytest.importorskip("nbformat")
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.slow
def test_an_interrupted_cell_goes_on_and_ends_in_the_same_bits(executed: Any) -> None:
    resumed, calm = 'train("runs/interrupted")', 'train("runs/calm")'
    assert "stopped by SIGINT after step 50 of 120" in shown(executed, "def train", "text/plain")
    assert "Run the cell again" in shown(executed, "def train", "text/plain")
    assert "resumed after step 50" in shown(executed, resumed, "text/plain")
    assert outputs(executed, resumed)[-1].data == outputs(executed, calm)[-1].data


@pytest.mark.slow
def test_an_expression_is_drawn_and_the_report_framed_in_their_cells(executed: Any) -> None:
    assert "* repeated" in shown(executed, "ts.explain", "text/plain")
    assert "report.html" in shown(executed, "from pathlib", "text/html")


@pytest.mark.slow
def test_a_script_is_checked_from_a_cell(executed: Any) -> None:
    assert "LOOP01 stale-gradients" in printed(executed, "!truestep check")


@pytest.mark.slow
def test_nothing_is_printed_as_an_error(executed: Any) -> None:
    every = [found for cell in executed.cells for found in cell.get("outputs", [])]
    assert not [found for found in every if found.output_type == "error"]
