"""Magics for notebooks: `%%truestep check` for one cell, `%truestep verify` for all cells that were run.

Owns how they are called. Is given IPython's shell, and imports nothing of IPython.
Checking and comparing are in `check` and `verify`.
"""

import re
import shlex
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

from truestep.base.cells import plain_code
from truestep.errors import UsageError

if TYPE_CHECKING:
    from truestep.check import RuleFinding

_USAGE = (
    "Write %%truestep check in the first line of a cell that trains, or %truestep verify after the cells "
    "that train."
)
_MINE = "truestep"


def add_magics(shell: Any) -> None:
    """Add the magics to a shell of IPython's."""
    shell.register_magic_function(_Magics(shell).call, magic_kind="line_cell", magic_name=_MINE)


class _Magics:
    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def call(self, line: str, cell: str | None = None) -> None:
        """Check a cell, or verify all cells that were run, and print the answer."""
        try:
            print(self._answer(line, cell))
        except UsageError as error:
            print(error)  # a traceback through IPython would not help

    def _answer(self, line: str, cell: str | None) -> str:
        command, *options = shlex.split(line) or [""]
        if command == "check" and cell is not None:
            return self._check(cell, _names(options))
        if command == "verify" and cell is None and not options:
            return self._verify()
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

    def _verify(self) -> str:
        from truestep.verify import Script, VerifyOptions, verify
        from truestep.verify.describe import describe

        cells = self._shell.history_manager.input_hist_raw[1:-1]  # the last one is this magic's
        text = "\n".join(f"# cell In[{number}]\n{plain_code(cell)}" for number, cell in enumerate(cells, 1))
        with tempfile.TemporaryDirectory(prefix="truestep-cells-") as folder, chdir(Path.cwd()):
            script = Path(folder) / "cells.py"
            script.write_text(f"import sys; sys.path.insert(0, '')  # the notebook's folder\n{text}\n")
            verdict = verify(Script(path=str(script)), VerifyOptions())
        return f"truestep: {describe(verdict)}"


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
