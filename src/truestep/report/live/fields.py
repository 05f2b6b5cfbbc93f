"""The state of a run as plain values for JSON, with the last value of each curve."""

import math
import time
from typing import Any

from truestep.report.live.state import Live
from truestep.report.numerals import reading, value_of
from truestep.report.verdicts import findings_in, sameness

_MAX_CURVES = 60
_MAX_LISTED = 200
_MAX_TEXT = 2000
_FINDING = ("code", "name", "severity", "file", "line", "message", "evidence", "cost", "fix", "step", "count")


def as_fields(live: Live) -> dict[str, Any]:
    """Return where a run stands; lists that are cut say how long they are."""
    facts, marks = live.facts, live.marks()
    findings, verdict = list(findings_in(facts.last_answer("check") or {})), facts.last_answer("verify")
    last = {item.name: item for item in facts.evaluations}
    return {
        "version": live.version,
        "now_s": round(time.time(), 3),
        "folder": str(live.folder),
        "status": live.status,
        "cursor": live.cursor,
        "end": live.end,
        "rate": _finite(live.rate()),
        "left_s": _finite(live.left_s()),
        "wait_share": _finite(live.wait_share()),
        "last_s": facts.last_s,
        "num_resumes": max(len(live.lives) - 1, 0),
        "snapshot": facts.snapshot_cursor,
        "curves": [
            {
                "name": name[:_MAX_TEXT],
                "last": value_of(name, curve.values[-1]),
                "num": len(curve),
                "num_nonfinite": curve.num_nonfinite,
            }
            for name, curve in list(live.curves.items())[:_MAX_CURVES]
        ],
        "num_curves": len(live.curves),
        "marks": [
            {"step": mark.step, "kind": mark.kind, "text": mark.words[:_MAX_TEXT], "time_s": mark.time_s}
            for mark in marks[-_MAX_LISTED:]
        ],
        "num_marks": len(marks),
        "processes": _processes(live),
        "evaluations": [
            {"name": name[:_MAX_TEXT], "cursor": item.cursor, "value": reading(name, item.value)[:_MAX_TEXT]}
            for name, item in last.items()
        ],
        "findings": [
            {key: str(item[key]) for key in _FINDING if item.get(key) is not None}
            for item in findings[:_MAX_LISTED]
        ],
        "num_findings": len(findings),
        "verdict": None if verdict is None else sameness(verdict.get("same")),
        "num_unread": live.num_unread,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _processes(live: Live) -> dict[str, Any] | None:
    if not live.lives:
        return None
    life = live.lives[-1]
    return {
        "num": life.processes,
        "started_s": life.time_s,
        "cursor": life.cursor,
        "host": life.host,
        "each": [
            {"rank": rank, "pid": pid, "alive": alive}
            for rank, (pid, alive) in enumerate(zip(life.pids, live.alive, strict=False))
        ],
    }
