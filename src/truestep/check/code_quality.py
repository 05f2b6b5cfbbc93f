"""Findings as a Code Quality report, which GitLab shows in a merge request.

Owns that form alone. See https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
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
    num_same: Counter[str] = Counter()

    def add(code: str, words: str, level: str, *, file: str, line: int | None, signs: Sequence[str]) -> None:
        text = "\n".join((code, *signs))
        num_same[text] += (
            1  # two findings must not have the same fingerprint, which stays when the line moves
        )
        sign = hashlib.sha256(f"{text}\n{num_same[text]}".encode(errors="replace")).hexdigest()
        path = Path(file)
        file = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else file
        place = {"path": file, "lines": {"begin": line or 1}}
        told = {"check_name": code, "description": words, "severity": _LEVELS[level]}
        rows.append({**told, "fingerprint": sign, "location": place})

    if inconclusive is not None:
        add("inconclusive", inconclusive, "error", file=start, line=1, signs=("", ""))
    for reported in flatten(findings):
        finding, code = reported.finding, reported.rule.meta.code
        words = f"{finding.message}. {reported.fix}"
        line = finding.line if finding.file else 1
        signs = fingerprint(reported, evidence, folder=folder)[1:]
        add(code, words, reported.severity, file=finding.file or start, line=line, signs=signs)
    return rows
