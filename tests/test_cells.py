"""Notebooks as scripts: cells in order, magics left out, lines found again."""

import json
from pathlib import Path

import pytest

from truestep.base.cells import code_of, is_notebook, line_name, line_names, place, plain_code


def write(path: Path, *cells: tuple[str, object]) -> Path:
    found = [{"cell_type": kind, "source": source} for kind, source in cells]
    path.write_text(json.dumps({"cells": found, "nbformat": 4}))
    return path


def test_code_is_all_code_cells_in_order(tmp_path):
    path = write(
        tmp_path / "a.ipynb", ("markdown", "# title"), ("code", ["x = 1\n", "y = 2"]), ("code", "z = x")
    )
    assert code_of(path) == "# cell 2\nx = 1\ny = 2\n# cell 3\nz = x\n"
    assert place(str(path), 3) == (2, 2)
    assert place(str(path), 5) == (3, 1)
    assert place(str(path), None) is None
    assert place(str(tmp_path / "none.ipynb"), 1) is None


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("%matplotlib inline\nx = 1", "pass  # %matplotlib inline\nx = 1"),
        ("if x:\n    !ls\n    y = 1", "if x:\n    pass  # !ls\n    y = 1"),
        ("model?\n?model", "pass  # model?\npass  # ?model"),
        ("%%bash\nls", "# %%bash\n# ls"),
        ("\n%%time\nx = 1", "\n# %%time\nx = 1"),
        ("%%truestep check --ignore PERF\nx = 1", "# %%truestep check --ignore PERF\nx = 1"),
        ("x = 5 % 2\ny = a if b else c", "x = 5 % 2\ny = a if b else c"),
        ("x = ('%d'\n  % 5)\n!ls", "x = ('%d'\n  % 5)\npass  # !ls"),
        ("text = '''\n%%time\n!ls\n'''", "text = '''\n%%time\n!ls\n'''"),
        ("x = (1\n", "x = (1\n"),
        ("", ""),
    ],
)
def test_magics_are_left_out_and_lines_stay(cell, code):
    assert plain_code(cell) == code
    assert plain_code(cell).count("\n") == cell.count("\n")


@pytest.mark.parametrize("text", ["", "[]", '{"worksheets": []}', '{"cells": 5}', "x = 1"])
def test_what_is_no_notebook_is_refused(tmp_path, text):
    (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(ValueError, match=r".+"):
        code_of(tmp_path / "a.ipynb")


def test_notebook_is_known_by_its_name():
    assert is_notebook("a.ipynb")
    assert not is_notebook(Path("a.py"))


def test_a_line_of_a_notebook_is_told_as_cell_and_line(tmp_path: Path) -> None:
    path = str(tmp_path / "train.ipynb")
    cells = [{"cell_type": "code", "source": ["a = 1\n", "b = 2"]}] * 2
    Path(path).write_text(json.dumps({"cells": cells}))
    assert line_name(path, 6) == f"{path}, cell 2, line 2"
    assert line_name(path, 6, shown="train.ipynb") == "train.ipynb, cell 2, line 2"
    assert line_names(path, [2, 6]) == "cell 1 line 1, cell 2 line 2"
    assert (line_name("train.py", 6), line_names("train.py", [2, 6])) == ("train.py:6", "lines 2, 6")
    assert line_names("train.py", [4]) == "line 4"
