"""Findings in the forms that code hosts and editors read: SARIF, GitHub's commands, GitLab's Code Quality.

Owns these forms. SARIF: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html. GitHub:
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands. GitLab:
https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import truestep
from truestep.check.baseline import fingerprint
from truestep.check.evaluate import RuleFinding, flatten
from truestep.check.examine import Result
from truestep.rules.rule import Rule

_SARIF = {"error": "error", "warning": "warning", "info": "note"}
_GITHUB = {"error": "error", "warning": "warning", "info": "notice"}
_GITLAB = {"error": "critical", "warning": "major", "info": "info"}
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def as_sarif(result: Result) -> dict[str, Any]:
    """Return a SARIF log with one run in it."""
    driver = {
        "name": "truestep",
        "semanticVersion": truestep.__version__,
        "rules": [_described(rule) for rule in result.rules],
    }
    invocation: dict[str, Any] = {"executionSuccessful": result.inconclusive is None}
    if result.inconclusive is not None:
        notification = {"level": "error", "message": {"text": f"inconclusive: {result.inconclusive}"}}
        invocation["toolExecutionNotifications"] = [notification]
    numbers = {rule.meta.code: number for number, rule in enumerate(result.rules)}
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": [_sarif_result(reported, numbers) for reported in flatten(result.findings)],
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _described(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.meta.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.document},
        "help": {"text": rule.meta.fix, "markdown": rule.document},
        "defaultConfiguration": {"level": _SARIF[rule.meta.severity]},
    }


def _sarif_result(reported: RuleFinding, numbers: dict[str, int]) -> dict[str, Any]:
    finding = reported.finding
    said = [f"{finding.message}.", finding.evidence and f"Seen: {finding.evidence}.", reported.fix]
    result: dict[str, Any] = {
        "ruleId": reported.rule.meta.code,
        "ruleIndex": numbers[reported.rule.meta.code],
        "level": _SARIF[reported.severity],
        "message": {"text": " ".join(part for part in said if part)},
        "properties": {"step": finding.step, "count": finding.count, "cost": finding.cost},
    }
    if finding.file:
        path = _in_checkout(finding.file)
        place: dict[str, Any] = {
            "artifactLocation": {"uri": path.as_uri() if path.is_absolute() else str(path)}
        }
        if finding.line:
            place["region"] = {"startLine": finding.line}
        result["locations"] = [{"physicalLocation": place}]
    return result


def as_annotations(result: Result) -> Iterator[str]:
    """Yield a command of GitHub Actions for each finding, the worst first: it shows ten of each level.

    What follows from a finding is in its text.
    """
    if result.inconclusive is not None:
        yield _command("error", result.inconclusive, title="truestep check: inconclusive")
    for reported in result.findings:
        finding, rule = reported.finding, reported.rule
        rows = {"Seen": finding.evidence, "Cost": finding.cost, "Fix": reported.fix}
        lines = [finding.message, *(f"{name}: {words}" for name, words in rows.items() if words)]
        lines += [f"So: {item.rule.meta.code} {item.finding.message}" for item in reported.consequences]
        place = {"file": finding.file, "line": finding.line if finding.file else None}
        title = f"{rule.meta.code} {rule.name}"
        yield _command(_GITHUB[reported.severity], "\n".join(lines), **place, title=title)


def _command(level: str, message: str, **properties: str | int | None) -> str:
    given = {name: str(value) for name, value in properties.items() if value is not None}
    words = ",".join(f"{name}={_escape(value, also=':,')}" for name, value in given.items())
    return f"::{level} {words}::{_escape(message)}"


def _escape(text: str, *, also: str = "") -> str:
    """Return a text of one line: what would end a command or a property is written as its number."""
    for character in "%\r\n" + also:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def as_code_quality(result: Result, *, script: str) -> list[dict[str, Any]]:
    """Return a report for GitLab. What has no place is put at the script.

    A fingerprint stays when the line moves, and no two findings have the same one.
    """
    start = str(Path(script).absolute())
    rows: list[tuple[str, str, str, tuple[str, int | None], tuple[str, str]]] = []
    if result.inconclusive is not None:
        rows.append(("inconclusive", result.inconclusive, "error", (start, 1), ("", "")))
    for reported in flatten(result.findings):
        finding = reported.finding
        _, *signs = fingerprint(reported, result.evidence, folder=_checkout())
        place = (finding.file, finding.line) if finding.file else (start, 1)
        words = f"{finding.message}. {reported.fix}"
        rows.append((reported.rule.meta.code, words, reported.severity, place, (signs[0], signs[1])))
    num_same: Counter[str] = Counter()
    report = []
    for code, words, level, (file, line), row_signs in rows:
        text = "\n".join((code, *row_signs))
        num_same[text] += 1
        sign = hashlib.sha256(f"{text}\n{num_same[text]}".encode(errors="replace")).hexdigest()
        location = {"path": _in_checkout(file).as_posix(), "lines": {"begin": line or 1}}
        report.append(
            {
                "check_name": code,
                "description": words,
                "severity": _GITLAB[level],
                "fingerprint": sign,
                "location": location,
            }
        )
    return report


def _in_checkout(file: str) -> Path:
    """Return a path as seen from the repository's folder, if it is in it."""
    path, folder = Path(file), _checkout()
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _checkout() -> Path:
    """Return the folder that code hosts see paths from: the repository's; else the working folder."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
