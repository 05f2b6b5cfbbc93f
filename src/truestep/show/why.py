"""Where a line's values come from and go to: the lines before and after it that share a name.

Owns following names through one file. It reads the source; what ran is what was recorded.
"""

import ast
from collections.abc import Iterator

from truestep.errors import UsageError
from truestep.show.in_script.targets import targets_of
from truestep.show.listing import File, Listing, Row
from truestep.show.text import Part, render_rows

_MAX_LINES = 40


def explain_line(listing: Listing, line: int, *, width: int) -> Iterator[list[Part]]:
    """Yield the lines that lead to a line, and those that its values reach."""
    item = listing.files[0]
    if not 1 <= line <= len(item.rows):
        raise UsageError(f"{item.path} has {len(item.rows)} lines, got --why {line}.")
    names = _Names(item)
    before, after = names.sources_of(line), names.users_of(line)
    yield [("comes from", "bold")]
    yield from render_rows(_rows(item, before | {line}), width=width)
    yield [("goes to", "bold")]
    yield from render_rows(_rows(item, after | {line}), width=width)


def _rows(item: File, lines: set[int]) -> list[Row]:
    return [item.row(number) for number in sorted(lines)][:_MAX_LINES]


class _Names:
    """Which names the statements of a file read and store."""

    def __init__(self, item: File) -> None:
        tree = ast.parse("\n".join(row.source for row in item.rows))
        self._targets = targets_of(item.path)
        self._stores: dict[int, set[str]] = {
            line: {target.variable for target in found} for line, found in self._targets.targets.items()
        }
        for first, found in self._targets.parameters.items():
            line = self._targets.statements.get(first, first)
            self._stores[line] = {target.variable for target in found}
        self._reads: dict[int, set[str]] = {}
        self._scopes: dict[int, tuple[int, int]] = {}
        self._walk(tree, (1, len(item.rows)))
        self._ran = {row.number for row in item.rows if row.count}

    def _walk(self, node: ast.AST, scope: tuple[int, int]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = (child.lineno, child.end_lineno or child.lineno)
                self._scopes[child.lineno] = inner
            elif isinstance(child, ast.stmt):
                self._scopes.setdefault(child.lineno, scope)
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                line = self._targets.statements.get(child.lineno, child.lineno)
                self._reads.setdefault(line, set()).add(child.id)
            self._walk(child, inner)

    def sources_of(self, line: int) -> set[int]:
        """Return the lines that stored what a line reads, and so on back."""
        line = self._targets.statements.get(line, line)
        found: set[int] = set()
        waiting = [(line, name) for name in self._reads.get(line, ())]
        while waiting and len(found) < _MAX_LINES:
            reader, name = waiting.pop(0)
            source = self._last_store(reader, name)
            if source is not None and source not in found and source != line:
                found.add(source)
                waiting += [(source, other) for other in self._reads.get(source, ())]
        return found

    def users_of(self, line: int) -> set[int]:
        """Return the lines that read what a line stores, and so on forward."""
        line = self._targets.statements.get(line, line)
        found: set[int] = set()
        waiting = [line]
        while waiting and len(found) < _MAX_LINES:
            stored = waiting.pop(0)
            for reader, names in self._reads.items():
                if reader in found or reader == line or reader not in self._ran:
                    continue
                if any(
                    self._last_store(reader, name) == stored
                    for name in names & self._stores.get(stored, set())
                ):
                    found.add(reader)
                    waiting.append(reader)
        return found

    def _last_store(self, reader: int, name: str) -> int | None:
        """Return the line that stored a name last before a line reads it, by the order of lines."""
        scope = self._scopes.get(reader)
        stores = [line for line, names in self._stores.items() if name in names and line in self._ran]
        inside = [line for line in stores if scope is not None and scope[0] <= line <= scope[1]]
        for lines in (inside, stores):
            before = [line for line in lines if line < reader]
            if before:
                return max(before)
        return None
