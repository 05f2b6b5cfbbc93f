"""A magic for notebooks: `%%truestep check` for one cell.

Owns how it is called. Is given IPython's shell, and imports nothing of IPython. Checking is in `check`.
"""

import re
import shlex
from typing import TYPE_CHECKING, Any

from truestep.errors import UsageError

if TYPE_CHECKING:
    from truestep.check import RuleFinding

_USAGE = "Write %%truestep check in the first line of a cell that trains."
_MINE = "truestep"


def add_magics(shell: Any) -> None:
    """Add the magics to a shell of IPython's."""
    shell.register_magic_function(_Magics(shell).call, magic_kind="line_cell", magic_name=_MINE)


class _Magics:
    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def call(self, line: str, cell: str | None = None) -> None:
        """Check a cell, and print the answer."""
        try:
            print(self._answer(line, cell))
        except UsageError as error:
            print(error)  # a traceback through IPython would not help

    def _answer(self, line: str, cell: str | None) -> str:
        command, *options = shlex.split(line) or [""]
        if command == "check" and cell is not None:
            return self._check(cell, _names(options))
        raise UsageError(f"truestep {line}: no such magic. {_USAGE}")

    def _check(self, cell: str, names: dict[str, list[str]]) -> str:
        from truestep.check.describe import describe
        from truestep.check.within import checking

        with checking(**names) as check:
            # The magic's own line is the first: so lines have the numbers that the notebook shows.
            result = self._shell.run_cell(f"# %%{_MINE} check\n{cell}")
            check.note_error(result.error_before_exec or result.error_in_exec)
        parts = [describe(item, check.result.evidence, where=self._place(item)) for item in check.findings]
        return "\n\n".join([*parts, f"truestep: {check.summary}"])

    def _place(self, reported: "RuleFinding") -> str:
        """Return the number of the cell, as the notebook shows it, and the line."""
        from truestep.check.describe import place_of

        finding = reported.finding
        named = self._shell.compile.format_code_name(finding.file) if finding.file else None
        found = re.fullmatch(r"In\s*\[(\d+)\]", named[1]) if named else None
        if found is None:
            return place_of(reported)
        number = min(int(found[1]), len(self._shell.user_ns["In"]) - 1)  # this cell's own is one too high
        return f"cell In[{number}], line {finding.line}"


def _names(options: list[str]) -> dict[str, list[str]]:
    """Read `--select LOOP,PAR --ignore PERF`."""
    found: dict[str, list[str]] = {}
    words = [part for word in options for part in word.split("=", 1)]
    while words:
        option = words.pop(0)
        if option not in ("--select", "--ignore") or not words:
            raise UsageError(f"%%truestep check takes --select RULES and --ignore RULES, got {option!r}.")
        found[option.removeprefix("--")] = [name for name in words.pop(0).split(",") if name]
    return found
