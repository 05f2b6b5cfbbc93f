"""Tables, lists of names and numbers as text: how results about models print.

Owns their look. What stands in them is up to those who ask.
"""

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_WIDTH = 100


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, total: Sequence[str] = ()) -> "Table":
    """Return a table for rich: names to the left, numbers (columns that begin with a space) to the right."""
    from rich import box  # noqa: PLC0415 - half of the time that importing truestep.model would take
    from rich.table import Table  # noqa: PLC0415

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column.strip(), justify="right" if column.startswith(" ") else "left", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    if total:
        made.add_section()
        made.add_row(*total)
    return made


def printed(made: "Table") -> str:
    """Return a table as plain text, the same on every terminal."""
    from rich.console import Console  # noqa: PLC0415

    stream = io.StringIO()
    console = Console(file=stream, width=_WIDTH, color_system=None, force_terminal=False)
    console.print(made)
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip().splitlines())


def shortened(names: Iterable[str], *, most: int = 4) -> str:
    """Return the first names, and how many more there are.

    >>> shortened(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def left_alone(left: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each reason why something was left as it was, with the names.

    >>> left_alone([("a", "frozen"), ("b", "frozen")])
    ['unchanged (frozen): a, b']
    """
    reasons: dict[str, list[str]] = {}
    for name, reason in left:
        reasons.setdefault(reason, []).append(name)
    return [f"unchanged ({reason}): {shortened(names)}" for reason, names in reasons.items()]


def columns(rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Return rows as lines with aligned columns: the first `left` to the left, the others to the right.

    >>> print(columns([["name", "size"], ["fc", "20"]]))
    name  size
    fc      20
    """
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]
    return "\n".join(line.rstrip() for line in lines)
