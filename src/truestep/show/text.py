"""The listing as lines of text: for a terminal, a log, or a coding agent.

Owns which lines are shown and how values are written. Colours are styles that the caller's page knows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from truestep.errors import UsageError
from truestep.show.listing import File, Listing, Row, Value, find_step, functions_of

Part = str | tuple[str, str]
"""A text, or a text and its style."""
_MAX_SOURCE = 60
_MAX_VALUES = 8


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which lines are shown."""

    lines: tuple[int, int] | None = None
    function: str | None = None
    everything: bool = False
    ran: bool = False
    """Only lines that ran while lines were followed."""


def render(listing: Listing, *, selection: Selection, width: int) -> Iterator[list[Part]]:
    """Yield the lines of the listing, each as its parts, within a width."""
    is_whole = selection.everything or selection.lines is not None
    shown = []
    for item in listing.files:
        chosen = _chosen(item, selection)
        rows = [row for row in item.rows if row.number in chosen and (is_whole or row.source.strip())]
        shown += [(item, rows)] if rows else []
    for item, rows in shown:
        if len(shown) > 1:
            yield [(short_path(item.path), "bold")]
        yield from render_rows(rows, width=width)


def require_shown(listing: Listing, selection: Selection) -> None:
    """Refuse a selection that no file has, with what there is."""
    names = sorted({name for item in listing.files for name in functions_of(item)})
    if selection.function is not None and selection.function not in names:
        raise UsageError(
            f"no function is called {selection.function}. There are {', '.join(names) or 'none'}."
        )


def _chosen(item: File, selection: Selection) -> set[int]:
    if selection.lines is not None:
        return set(range(selection.lines[0], selection.lines[1] + 1))
    if selection.function is not None:
        first, last = functions_of(item).get(selection.function, (1, 0))
        return set(range(first, last + 1))
    if selection.everything:
        return set(range(1, len(item.rows) + 1))
    if selection.ran:
        return {row.number for row in item.rows if row.count}
    if any(row.differs for row in item.rows):
        return {row.number for row in item.rows if row.differs}
    step = find_step(item)
    odd = {row.number for row in item.rows if row.count > 1 and any(value.is_odd for value in row.values)}
    return step | odd | _bodies_called(item, step)


def _bodies_called(item: File, step: set[int]) -> set[int]:
    """Return the lines of functions that ran in steps and computed values: a forward pass, a loss."""
    most = max((item.row(number).count for number in step), default=0)
    found: set[int] = set()
    if most > 1:
        for first, last in functions_of(item).values():
            rows = [item.row(number) for number in range(first, last + 1)]
            if max(row.count for row in rows) > 1 and not set(range(first, last + 1)) & step:
                found |= {row.number for row in rows if row.values}
    return found


def render_rows(rows: list[Row], *, width: int) -> Iterator[list[Part]]:
    """Yield some rows of one file, each with its values."""
    digits = len(str(rows[-1].number))
    indent = min(
        (len(row.source) - len(row.source.lstrip()) for row in rows if row.source.strip()), default=0
    )
    room = min(_MAX_SOURCE, max(24, (width - digits - 2) // 2))
    longest = max((len(row.source[indent:]) for row in rows), default=0)
    room = min(room, longest)
    before = 0
    for row in rows:
        if before and row.number != before + 1:
            yield [("…".rjust(digits), "dim")]
        before = row.number
        for item in row.gone:
            yield [(f"{'':>{digits}} -{_cut(item.source[indent:], width - digits - 2)}", "red")]
        yield from _render_row(row, row.source[indent:], digits=digits, room=room, width=width)


def _render_row(  # limits: private to this module
    row: Row, source: str, *, digits: int, room: int, width: int
) -> Iterator[list[Part]]:
    style = "green" if row.is_new else "" if row.count else "dim"
    head: list[Part] = [
        (f"{row.number:>{digits}} {'+' if row.is_new else ' '}", "green" if row.is_new else "dim"),
        (_cut(source, room).ljust(room), style),
    ]
    space = max(20, width - digits - 2 - room - 2)
    values = row.values[:_MAX_VALUES]
    if not values:
        yield [head[0], (source[: width - digits - 2], style)]
        return
    for number, value in enumerate(values):
        parts = head if number == 0 else [" " * (digits + 2 + room)]
        blank = " " * (digits + 2 + room)
        for index, line in enumerate(_wrapped(f"{value.label}: {value.words}", space)):
            yield [*(parts if index == 0 else [blank]), "  ", *_styled(line, value, index)]
        if value.differs:
            for line in _wrapped(f"≠ {other_words(value)}", space):
                yield [blank, "  ", (line, "bold yellow")]
    if len(row.values) > _MAX_VALUES:
        yield [" " * (digits + 4 + room), (f"{len(row.values) - _MAX_VALUES} more", "dim")]


def _styled(line: str, value: Value, index: int) -> list[Part]:
    style = "yellow" if value.is_odd else ""
    if index == 0 and line.startswith(f"{value.label}:"):
        return [(value.label, "cyan"), (line[len(value.label) :], style)]
    return [(line, style)]


def _wrapped(words: str, width: int) -> list[str]:
    import textwrap  # noqa: PLC0415

    return textwrap.wrap(words, width, subsequent_indent="  ", break_on_hyphens=False) or [""]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def other_words(value: Value) -> str:
    """Return what a value was in the run that this one is compared with."""
    return "not there" if value.other is None else value.other.words


def compared_words(listing: Listing) -> str:
    """Return how the run compares with the other one."""
    found = listing.first_difference
    if found is not None:
        value, other = found.value, found.value.other
        words = (
            [value.begun, other.begun] if found.is_at_start and other else [value.words, other_words(value)]
        )
        place = f"{short_path(found.file)}:{found.line}"
        return f"first difference: {place} {value.label}: {words[0]}; in {listing.against}: {words[1]}"
    if any(row.differs for item in listing.files for row in item.rows):
        return f"lines differ from {listing.against}; no value recorded at a line of both differs as printed"
    return f"no line and no recorded value differs from {listing.against} as printed"


def short_path(path: str) -> str:
    """Return a path as seen from the working folder, if it lies in it."""
    file = Path(path)
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else path
