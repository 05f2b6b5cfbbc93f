"""Magics for notebooks: `%%truestep check` for one cell, `%truestep verify` for all cells that were run.

Owns how they are called and how a table looks. Is given IPython's shell, and imports nothing of IPython.
Checking and comparing are in `check` and `verify`.
"""

import html
import re
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

from truestep.base.cells import plain_code
from truestep.errors import UsageError

if TYPE_CHECKING:
    from truestep.check import RuleFinding
    from truestep.check.within import Check
    from truestep.verify import Verdict

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

    def call(self, line: str, cell: str | None = None) -> "Table | None":
        """Check a cell, or verify all cells that were run; IPython displays the table."""
        try:
            return self._answer(line, cell)
        except UsageError as error:
            print(error)  # a traceback through IPython would not help
            return None

    def _answer(self, line: str, cell: str | None) -> "Table":
        command, *options = shlex.split(line) or [""]
        if command == "check" and cell is not None:
            return self._check(cell, _names(options))
        if command == "verify" and cell is None and not options:
            return self._verify()
        raise UsageError(f"truestep {line}: no such magic. {_USAGE}")

    def _check(self, cell: str, names: dict[str, list[str]]) -> "Table":
        from truestep.check.within import checking

        with checking(**names) as check:
            # The magic's own line is the first: so lines have the numbers that the notebook shows.
            result = self._shell.run_cell(f"# %%{_MINE} check\n{cell}")
            check.note_error(result.error_before_exec or result.error_in_exec)
        return table_of_check(check, self._place)

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

    def _verify(self) -> "Table":
        from truestep.verify import Script, VerifyOptions, verify

        cells = self._shell.history_manager.input_hist_raw[1:-1]  # the last one is this magic's
        text = "\n".join(f"# cell In[{number}]\n{plain_code(cell)}" for number, cell in enumerate(cells, 1))
        with tempfile.TemporaryDirectory(prefix="truestep-cells-") as folder, chdir(Path.cwd()):
            script = Path(folder) / "cells.py"
            script.write_text(f"import sys; sys.path.insert(0, '')  # the notebook's folder\n{text}\n")
            verdict = verify(Script(path=str(script)), VerifyOptions())
        return table_of_verdict(verdict)


class Table:
    """Rows that a notebook draws as a table, and that print as text."""

    def __init__(self, title: str, names: Sequence[str], *, rows: Sequence[Sequence[str]], text: str) -> None:
        self.title, self.names, self.rows, self.text = title, names, rows, text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        left = "style='text-align:left;vertical-align:top;white-space:pre-wrap'"
        head = "".join(f"<th {left}>{html.escape(name)}</th>" for name in self.names)
        rows = "".join(
            "<tr>" + "".join(f"<td {left}>{html.escape(text)}</td>" for text in row) + "</tr>"
            for row in self.rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if self.rows else ""
        return f"<p><b>{html.escape(self.title)}</b></p>{table}"


def table_of_check(check: "Check", place: Any) -> Table:
    """Return the findings of a cell."""
    from truestep.check.describe import count_text, evidence_text

    rows = []
    for reported in check.findings:
        source = check.result.evidence.source(reported.finding.file)
        code = source.line(reported.finding.line).strip() if source else ""
        rows.append(
            (
                f"{reported.severity} {reported.rule.meta.code}",
                f"{place(reported)}\n{code}",
                f"{reported.finding.message}\n{evidence_text(reported)}",
                reported.fix,
            )
        )
    title = f"truestep: {count_text(check.result)} in {check.num_steps} steps"
    if check.inconclusive is not None:
        title = f"truestep: inconclusive: {check.inconclusive}"
    return Table(title, ("finding", "where", "what", "fix"), rows=rows, text=f"{title}\n\n{check}")


def table_of_verdict(verdict: "Verdict") -> Table:
    """Return what was run, and the first difference."""
    from truestep.verify.describe import describe

    rows = []
    for number, run in enumerate(verdict.runs, start=1):
        rows.append((str(number), run.words, str(run.num_steps), run.digest, run.divergence))
    text = describe(verdict)
    names = ("run", "how", "steps", "digest", "")
    return Table(f"truestep: {text}", names, rows=rows, text=f"truestep: {text}")


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
