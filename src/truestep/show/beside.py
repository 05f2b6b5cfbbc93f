"""Two runs beside each other: lines aligned by what they say, and the values that differ.

Owns which line of one version is which of the other, and which value differed first.
"""

from collections.abc import Iterator
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path

from truestep.show.listing import Difference, File, Listing, Row, Value


def put_beside(ours: Listing, theirs: Listing, *, name: str) -> Listing:
    """Return the first listing, with what the second had at each line and value."""
    files = [_compared(item, _other(item, number, theirs)) for number, item in enumerate(ours.files)]
    return replace(ours, files=files, against=name, first_difference=_first(files))


def _other(item: File, number: int, theirs: Listing) -> File | None:
    """Return the same file in the other run; two scripts are one file, whatever they are called."""
    same = theirs.file(item.path) or theirs.file(Path(item.path).name)
    return same or (theirs.files[0] if number == 0 and theirs.files else None)


def _compared(item: File, other: File | None) -> File:
    old = other.rows if other is not None else []
    rows: list[Row] = []
    gone: list[Row] = []
    for ours, theirs in _aligned(item.rows, old):
        if theirs is not None and (ours is None or ours.source != theirs.source):
            gone.append(theirs)
        if ours is None:
            continue
        is_new = theirs is None or ours.source != theirs.source
        rows.append(replace(ours, values=_values(ours, theirs), is_new=is_new, gone=tuple(gone)))
        gone = []
    if gone and rows:  # what stood after the last line
        rows[-1] = replace(rows[-1], gone=(*rows[-1].gone, *gone))
    return replace(item, rows=rows)


def _aligned(ours: list[Row], theirs: list[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """Yield pairs of lines: the same, changed, or with none on one side."""
    texts = ([row.source for row in theirs], [row.source for row in ours])
    for _, a, b, c, d in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        yield from zip_longest(ours[c:d], theirs[a:b])


def _values(ours: Row, theirs: Row | None) -> tuple[Value, ...]:
    """Return a line's values, each with what it was in the other run, if the line ran there."""
    if theirs is None or not theirs.count:
        return ours.values
    known = {value.label: value for value in theirs.values}
    return tuple(
        replace(value, other=known.get(value.label), is_new=value.label not in known) for value in ours.values
    )


def _first(files: list[File]) -> Difference | None:
    """Return the value that differed first: at its first call if one did, or else later."""
    found = [
        Difference(file=item.path, line=row.number, value=value)
        for item in files
        for row in item.rows
        for value in row.values
        if value.differs
    ]
    return min(found, key=lambda item: (not item.is_at_start, item.value.order), default=None)
