"""What `check` and `verify` answered, for tools that show curves: Markdown, one line each, and a curve.

Owns the words. Reads records that anybody may have written, so every field may be of any kind.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from truestep.report.curve import Curve
from truestep.report.numerals import compared_steps
from truestep.report.readings import storable
from truestep.report.runs import Facts
from truestep.report.verdicts import check_words

CURVE = "truestep/findings"
COLUMNS = ("severity", "rule", "where", "what", "fix")
_MAX_ROWS = 200
_MARKS = re.compile(r"([\\`*_{}\[\]<>|#])")
"""What Markdown would read as its own."""
_ESCAPED = r"\\\1"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One command's last answer: its name, one line, and a table of rows if there is something to list."""

    command: str
    line: str
    rows: list[tuple[str, ...]]

    @property
    def markdown(self) -> str:
        """The line and the table."""
        table = [] if not self.rows else ["", _row(COLUMNS), _row(["---"] * len(COLUMNS))]
        table += [_row([_MARKS.sub(_ESCAPED, cell) for cell in row]) for row in self.rows[:_MAX_ROWS]]
        title = f"truestep {self.command}: {self.line}"
        return "\n".join([f"**{_MARKS.sub(_ESCAPED, title)}**", *table])


def answers(facts: Facts) -> list[Answer]:
    """Return the last answer of `check` and of `verify`, as far as the record has them."""
    make = {"check": _check, "verify": _verify}
    return [make[name](event) for name in make if (event := facts.last_answer(name)) is not None]


def findings_curve(facts: Facts) -> Curve:
    """Return how many errors and warnings `check` had found by the first step, the last, and each between."""
    curve = Curve()
    event = facts.last_answer("check") or {}
    steps = sorted(_step(item) for item in _findings(event) if item.get("severity") != "info")
    for step in sorted({0, _step({"step": event.get("steps")}), *steps}):
        curve.add(step, float(bisect_right(steps, step)))
    return curve


def _check(event: dict[str, Any]) -> Answer:
    rows = [_row_of(item, _folder(event, item)) for item in _findings(event)]
    return Answer(command="check", line=check_words(event), rows=rows)


def _verify(event: dict[str, Any]) -> Answer:
    runs, same = event.get("runs"), event.get("same")
    runs = runs if isinstance(runs, list) else []
    found = event.get("first_difference")
    rows = []
    if same is True:
        line = f"{len(runs)} runs are bit-for-bit identical in {compared_steps(event)}"
    elif same is False and isinstance(found, dict):
        line = f"runs differ from step {_text(found.get('step'))} on"
        shown = {**found, "severity": "different", "code": found.get("name"), "message": found.get("cause")}
        rows = [_row_of(shown, _folder(event, found))]
    else:
        line = f"inconclusive: {_text(event.get('reason'))}"
    return Answer(command="verify", line=line, rows=rows)


def _findings(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    found = event.get("findings")
    yield from (item for item in (found if isinstance(found, list) else []) if isinstance(item, dict))


def _folder(event: dict[str, Any], item: dict[str, Any]) -> str:
    """Return the folder that the command was given the script in: places are shown as seen from there."""
    script, file = (_text(each.get(name)) for each, name in ((event, "script"), (item, "file")))
    return file.removesuffix(script) if script and file.endswith(f"/{script}") else ""


def _row_of(item: dict[str, Any], folder: str) -> tuple[str, ...]:
    line = "" if item.get("line") is None else f":{_text(item['line'])}"
    place = f"{_text(item['file']).removeprefix(folder)}{line}" if item.get("file") else ""
    severity = "remark" if item.get("severity") == "info" else _text(item.get("severity"))
    return severity, _text(item.get("code")), place, _text(item.get("message")), _text(item.get("fix"))


def _step(item: dict[str, Any]) -> int:
    """Return the step, counted from 0 as the curves of exports are; what is none is the first."""
    step = item.get("step")
    return max(step - 1, 0) if isinstance(step, int) and step < 2**53 else 0


def _text(value: object) -> str:
    return "" if value is None else " ".join(storable(value).split())


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"
