"""Findings as SARIF 2.1.0, which code hosts and editors show beside the lines.

Owns that form alone. See https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from truestep.check.evaluate import RuleFinding, flatten
from truestep.rules.rule import Rule

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def as_sarif(
    findings: Iterable[RuleFinding],
    *,
    rules: Sequence[Rule],
    version: str,
    folder: Path,
    inconclusive: str | None = None,
) -> dict[str, Any]:
    """Return a log with one run in it; paths under the folder are relative to it."""
    driver = {
        "name": "truestep",
        "semanticVersion": version,
        "rules": [_describe(rule) for rule in rules],
    }
    numbers = {rule.meta.code: number for number, rule in enumerate(rules)}
    results = [_result(reported, numbers, folder) for reported in flatten(findings)]
    run = {
        "tool": {"driver": driver},
        "invocations": [_invocation(inconclusive)],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _invocation(inconclusive: str | None) -> dict[str, Any]:
    if inconclusive is None:
        return {"executionSuccessful": True}
    notification = {"level": "error", "message": {"text": f"inconclusive: {inconclusive}"}}
    return {"executionSuccessful": False, "toolExecutionNotifications": [notification]}


def _describe(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.meta.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.document},
        "help": {"text": rule.meta.fix, "markdown": rule.document},
        "defaultConfiguration": {"level": _LEVELS[rule.meta.severity]},
    }


def _result(reported: RuleFinding, numbers: dict[str, int], folder: Path) -> dict[str, Any]:
    finding = reported.finding
    said = [f"{finding.message}.", finding.evidence and f"Seen: {finding.evidence}.", reported.fix]
    result: dict[str, Any] = {
        "ruleId": reported.rule.meta.code,
        "ruleIndex": numbers[reported.rule.meta.code],
        "level": _LEVELS[reported.severity],
        "message": {"text": " ".join(part for part in said if part)},
        "properties": {"step": finding.step, "count": finding.count, "cost": finding.cost},
    }
    if finding.file:
        result["locations"] = [{"physicalLocation": _place(finding.file, finding.line, folder)}]
    return result


def _place(file: str, line: int | None, folder: Path) -> dict[str, Any]:
    path = Path(file)
    if path.is_relative_to(folder):
        place: dict[str, Any] = {"artifactLocation": {"uri": path.relative_to(folder).as_posix()}}
    else:
        place = {"artifactLocation": {"uri": path.as_uri()}}
    if line:
        place["region"] = {"startLine": line}
    return place
