"""Findings as a Code Quality report, which GitLab shows in a merge request.

Owns that form alone. See https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from truestep.check.baseline import fingerprint
from truestep.check.evaluate import RuleFinding, flatten
from truestep.rules.evidence import Evidence

_LEVELS = {"error": "critical", "warning": "major", "info": "info"}


def as_code_quality(
    findings: Iterable[RuleFinding],
    *,
    evidence: Evidence,
    folder: Path,
    script: str,
    inconclusive: str | None,
) -> list[dict[str, Any]]:
    """Return a report; paths under the folder are relative to it. What has no place is put at the script."""
    start = str(Path(script).absolute())
    rows: list[dict[str, Any]] = []
    if inconclusive is not None:
        rows.append(_row("inconclusive", inconclusive, place=(start, 1), level="error", signs=("", "")))
    for reported in flatten(findings):
        finding = reported.finding
        place = (finding.file, finding.line) if finding.file else (start, 1)
        rows.append(
            _row(
                reported.rule.meta.code,
                f"{finding.message}. {reported.fix}",
                place=place,
                level=reported.severity,
                signs=fingerprint(reported, evidence, folder=folder)[1:],
            )
        )
    return _finished(rows, folder)


def _row(
    code: str, words: str, *, place: tuple[str, int | None], level: str, signs: tuple[str, str]
) -> dict[str, Any]:
    return {
        "check_name": code,
        "description": words,
        "severity": _LEVELS.get(level, level),
        "fingerprint": "\n".join((code, *signs)),
        "location": {"path": place[0], "lines": {"begin": place[1] or 1}},
    }


def _finished(rows: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Give each row its fingerprint, which stays when the line moves, and a path as GitLab knows it."""
    num_same: Counter[str] = Counter()
    for row in rows:
        text = row["fingerprint"]
        num_same[text] += 1  # two findings must not have the same one
        row["fingerprint"] = hashlib.sha256(f"{text}\n{num_same[text]}".encode(errors="replace")).hexdigest()
        path = Path(row["location"]["path"])
        if path.is_relative_to(folder):
            row["location"]["path"] = path.relative_to(folder).as_posix()
    return rows
