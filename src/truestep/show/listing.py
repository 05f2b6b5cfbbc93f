"""The listing: the script's lines with what was recorded beside each.

Owns reading it back and joining it with the source. How it looks is in `text` and `page`.
"""

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from truestep import record, watch
from truestep.base.cells import code_of, is_notebook
from truestep.watch.evidence.phases import phase_shares

ODD_FACTS = ("not finite", "the same at each call", "never reaches a loss", "all rows equal", "all zeros")
"""What a reader should see first."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """What one name was at one line."""

    label: str
    kind: str
    first: str
    last: str
    last_kind: str
    facts: tuple[str, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    """Number of the call, and the value then."""
    history: tuple[tuple[int, str], ...] = ()
    order: int = 0
    """Its place among all values, in the order in which they were first made."""
    other: "Value | None" = None
    """What it was in the run that this one is compared with."""
    is_new: bool = False
    """Whether that run had no such value at this line."""

    @property
    def words(self) -> str:
        """Return it as text: at the first call, and at the last if that differs."""
        change = f" → {self.change}" if self.change else ""
        facts = f"  [{', '.join(self.facts)}]" if self.facts else ""
        return f"{self.begun}{change}{facts}"

    @property
    def begun(self) -> str:
        """Return what it was at the first call."""
        return " ".join(part for part in (self.kind, self.first) if part)

    @property
    def differs(self) -> bool:
        """Whether it was something else in the other run."""
        return self.is_new or (self.other is not None and self.other.words != self.words)

    @property
    def is_odd(self) -> bool:
        """Whether one of its facts deserves a look."""
        return any(fact.startswith(ODD_FACTS) for fact in self.facts)

    @property
    def change(self) -> str:
        """What it was at the last call, if that differs from the first."""
        if (self.kind, self.first) == (self.last_kind, self.last):
            return ""
        return (
            self.last
            if self.kind == self.last_kind and self.last
            else f"{self.last_kind} {self.last}".strip()
        )

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "name": self.label,
            "kind": self.kind,
            "first": self.first,
            "last_kind": self.last_kind,
            "last": self.last,
            "facts": list(self.facts),
            "curve": [[call, value if math.isfinite(value) else None] for call, value in self.curve],
            **({"differs": True, "other": self.other and self.other.words} if self.differs else {}),
        }


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a file."""

    number: int
    source: str
    count: int = 0
    """How often it was seen to run."""
    seconds: float = 0.0
    """How long it took while it was followed, with what it called."""
    values: tuple[Value, ...] = ()
    findings: tuple[dict[str, Any], ...] = ()
    """What `check` reports at this line, as in its JSON."""
    is_new: bool = False
    """Whether the other version has no such line."""
    gone: tuple["Row", ...] = ()
    """Lines of the other version that stood before this one."""

    @property
    def differs(self) -> bool:
        """Whether the other run had another line here, or another value."""
        return self.is_new or bool(self.gone) or any(value.differs for value in self.values)

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "line": self.number,
            "source": self.source,
            "count": self.count,
            "values": [value.as_fields() for value in self.values],
        }


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that differs from that of another run."""

    file: str
    line: int
    value: Value

    @property
    def is_at_start(self) -> bool:
        """Whether it differed at the first call already."""
        other = self.value.other
        return other is None or other.begun != self.value.begun

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        return {"file": self.file, "line": self.line, **self.value.as_fields()}


@dataclass(kw_only=True)
class File:
    """One file of the script's own."""

    path: str
    rows: list[Row]
    step_lines: tuple[int, ...] = ()
    """Lines that call an optimizer's `step`."""

    def row(self, number: int) -> Row:
        """Return a line by its number."""
        return self.rows[number - 1]


@dataclass(kw_only=True)
class Listing:
    """The files of a script that ran, in the order in which they began."""

    files: list[File]
    num_steps: int = 0
    traced_s: float = 0.0
    """How long lines were followed; shares of time are of this."""
    own_s: float = 0.0
    """How long recording took."""
    phases: dict[str, float] = field(default_factory=dict)
    """Shares of a step's time: waiting for data, forward, backward, optimizer, other."""
    ended: str | None = None
    error: str | None = None
    troubles: list[str] = field(default_factory=list)
    against: str | None = None
    """The name of the run that this one is compared with."""
    first_difference: Difference | None = None

    def file(self, path: str) -> File | None:
        """Return a file by its path or its name."""
        for item in self.files:
            if item.path == path or Path(item.path).name == path:
                return item
        return None

    def rename(self, original: Callable[[str], str]) -> None:
        """Give files the names that they have in the user's own folder."""
        for item in self.files:
            item.path = original(item.path)

    @property
    def first_nonfinite(self) -> "Difference | None":
        """The value that was not finite first."""
        found = [
            Difference(file=item.path, line=row.number, value=value)
            for item in self.files
            for row in item.rows
            for value in row.values
            if any(fact.startswith(ODD_FACTS[0]) for fact in value.facts)
        ]
        return min(found, key=lambda item: item.value.order, default=None)

    def pin(self, findings: list[dict[str, Any]]) -> None:
        """Put findings of `check`, as in its JSON, beside their lines."""
        for item in self.files:
            by_line: dict[int, list[dict[str, Any]]] = {}
            for found in findings:
                if found["file"] == item.path and found["line"] is not None:
                    by_line.setdefault(found["line"], []).append(found)
            item.rows = [replace(row, findings=tuple(by_line.get(row.number, ()))) for row in item.rows]

    def share(self, row: Row) -> float:
        """Return a line's share of the time in which lines were followed."""
        return row.seconds / self.traced_s if self.traced_s > 0 else 0.0

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "steps": self.num_steps,
            "ended": self.ended,
            "error": self.error,
            "followed_s": self.traced_s,
            "recording_s": self.own_s,
            "phases": {phase: round(share, 4) for phase, share in self.phases.items()},
            "troubles": self.troubles,
            **self._compared_fields(),
            "files": [
                {
                    "file": item.path,
                    "lines": [
                        {**row.as_fields(), "share": round(self.share(row), 4), **_marks(row)}
                        for row in item.rows
                        if row.count or row.is_new or row.gone
                    ],
                }
                for item in self.files
            ],
        }

    def _compared_fields(self) -> dict[str, Any]:
        if self.against is None:
            return {}
        found = self.first_difference
        return {"against": self.against, "first_difference": found.as_fields() if found else None}


def _marks(row: Row) -> dict[str, Any]:
    gone: dict[str, Any] = {"gone": [item.as_fields() for item in row.gone]} if row.gone else {}
    return {"new": True, **gone} if row.is_new else gone


def read_listing(folder: Path) -> Listing:
    """Return what the script's process wrote into a folder; of several, the first that trained."""
    found = [list(record.read(path)) for path in sorted(folder.glob("process-*.jsonl"))]
    shown = [(events, event) for events in found for event in events if event["kind"] == "show"]
    troubles = [event["error"] for events in found for event in events if event["kind"] == "trouble"]
    if not shown:
        return Listing(files=[], troubles=troubles)
    events, event = max(shown, key=lambda item: item[1]["steps"])
    end = next((item for item in events if item["kind"] == "end"), {"how": None, "error": None})
    steps: dict[str, list[int]] = {}
    for file, line in event["step_lines"]:
        steps.setdefault(file, []).append(line)
    files = [
        _file(path, lines, tuple(steps.get(path, ()))) for path, lines in event["files"].items() if lines
    ]
    return Listing(
        files=[item for item in files if item is not None],
        num_steps=event["steps"],
        traced_s=max(event["traced_s"], 0.0),
        own_s=event["own_s"],
        phases=_phases(folder, begin=event["timed_from"], traced=event["traced"]),
        ended=end["how"],
        error=end["error"],
        troubles=troubles,
    )


def _phases(folder: Path, *, begin: int | None, traced: list[int]) -> dict[str, float]:
    if begin is None:
        return {}
    trained = max(watch.read(folder), key=lambda process: process.num_steps)
    return phase_shares(trained.moments, begin=begin, without=traced)


def _file(path: str, lines: dict[str, Any], step_lines: tuple[int, ...]) -> File | None:
    source = _source_of(path)
    if source is None:
        return None
    rows = []
    for number, text in enumerate(source, start=1):
        found = lines.get(str(number))
        rows.append(Row(number=number, source=text) if found is None else _row(number, text, found))
    return File(path=path, rows=rows, step_lines=step_lines)


def _source_of(path: str) -> list[str] | None:
    try:
        text = (
            code_of(path) if is_notebook(path) else Path(path).read_text(encoding="utf-8", errors="replace")
        )
    except (OSError, ValueError):
        return None
    return text.splitlines()


def _row(number: int, text: str, found: dict[str, Any]) -> Row:
    values = tuple(
        Value(
            label=label,
            kind=item["first"][0],
            first=item["first"][1],
            last_kind=item["last"][0],
            last=item["last"][1],
            facts=tuple(item["facts"]),
            curve=tuple((call, record.number(value)) for call, value in item["curve"]),
            history=tuple((call, words) for call, words in item["history"]),
            order=item["order"],
        )
        for label, item in found["values"].items()
    )
    return Row(number=number, source=text, count=found["count"], seconds=found["seconds"], values=values)


def find_step(item: File) -> set[int]:
    """Return the lines of the training step: the innermost loop or function around each call of `step`."""
    try:
        tree = ast.parse("\n".join(row.source for row in item.rows))
    except (SyntaxError, ValueError):
        return set()
    found: set[int] = set()
    for line in item.step_lines:
        around = [node for node in _blocks(tree) if node.lineno <= line <= (node.end_lineno or node.lineno)]
        loops = [node for node in around if isinstance(node, ast.For | ast.AsyncFor | ast.While)]
        block = max(loops or around, key=lambda node: node.lineno, default=None)
        if block is not None:
            found |= set(range(block.lineno, (block.end_lineno or block.lineno) + 1))
    return found


def functions_of(item: File) -> dict[str, tuple[int, int]]:
    """Return first and last line of each function, by its name."""
    try:
        tree = ast.parse("\n".join(row.source for row in item.rows))
    except (SyntaxError, ValueError):
        return {}
    return {
        node.name: (node.lineno, node.end_lineno or node.lineno)
        for node in _blocks(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _blocks(tree: ast.AST) -> Iterator[ast.stmt]:
    kinds = (ast.For, ast.AsyncFor, ast.While, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            yield node
