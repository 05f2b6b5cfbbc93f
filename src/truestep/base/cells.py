"""Notebooks as scripts: the code of all cells in one text, and which cell a line of it belongs to.

Owns what is left out: magics and shell commands, which only IPython understands. Runs nothing.
"""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from truestep.base import plainfile

SUFFIX = ".ipynb"
_CODE_AFTER = ("%%time", "%%timeit", "%%capture", "%%truestep", "%%prun", "%%python", "%%python3")
"""Cell magics whose cell is plain Python all the same."""
_MAGIC = re.compile(r"(\s*)([%!?]|\w[\w.]*\?)")


def is_notebook(file: str | Path) -> bool:
    """Whether a file is a notebook, by its name."""
    return str(file).endswith(SUFFIX)


def code_of(path: str | Path) -> str:
    """Return the code of a notebook as a script: a comment before each cell, magics left out.

    ValueError: the file is no notebook.
    """
    found = plainfile.read_json(Path(path))
    cells = found.get("cells") if isinstance(found, dict) else None
    if not isinstance(cells, list):
        raise ValueError("not a notebook of version 4: it has no list of cells")
    texts = []
    for number, cell in enumerate(cells, start=1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            texts.append(f"# cell {number}\n{plain_code(_joined(cell.get('source')))}\n")
    return "".join(texts)


def _joined(source: object) -> str:
    return "".join(map(str, source)) if isinstance(source, list) else str(source or "")


def plain_code(cell: str) -> str:
    """Return a cell without what only IPython understands; lines keep their numbers."""
    lines = cell.split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%"):
        if lines[first].split()[0] not in _CODE_AFTER:
            return "\n".join(f"# {line}" for line in lines)
        lines[first] = "# " + lines[first]
    while (number := _wrong_line(lines)) is not None:
        found = _MAGIC.match(lines[number])
        if found is None:
            break  # Python reports it when it runs
        lines[number] = f"{found[1]}pass  # {lines[number].strip()}"
    return "\n".join(lines)


def _wrong_line(lines: list[str]) -> int | None:
    """Return the first line that is not Python: one that begins with `%` may go on with an expression."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        return min(error.lineno or 1, len(lines)) - 1
    except ValueError:
        return None
    return None


def line_name(file: str, line: int | None, *, shown: str | None = None) -> str:
    """Return file and line, with `shown` for the path if given; in a notebook the cell and its line."""
    found = place(file, line) if is_notebook(file) else None
    name = file if shown is None else shown
    return f"{name}:{line}" if found is None else f"{name}, cell {found[0]}, line {found[1]}"


def line_names(file: str, lines: Sequence[int]) -> str:
    """Return several lines of one file, as people write them."""
    found = {line: place(file, line) if is_notebook(file) else None for line in lines}
    if not all(found.values()):
        return f"line{'s' * (len(found) != 1)} {', '.join(map(str, found))}"
    return ", ".join(f"cell {item[0]} line {item[1]}" for item in found.values() if item is not None)


def place(file: str, line: int | None) -> tuple[int, int] | None:
    """Return the number of the cell, counted from 1 with text cells, and the line in it; None if unknown."""
    try:
        lines = code_of(file).split("\n") if line else []
    except (OSError, ValueError):
        return None
    for index in range(min(line or 0, len(lines)) - 1, -1, -1):
        found = re.fullmatch(r"# cell (\d+)", lines[index])
        if found is not None and line is not None:
            return int(found[1]), line - index - 1
    return None
