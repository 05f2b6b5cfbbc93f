"""Findings in the forms that code hosts and editors read: SARIF and GitHub's commands.

Owns these forms. SARIF: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html. GitHub:
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import truestep
from truestep.check.evaluate import RuleFinding, flatten
from truestep.check.examine import Result
from truestep.rules.rule import Rule

_SARIF = {"error": "error", "warning": "warning", "info": "note"}
_GITHUB = {"error": "error", "warning": "warning", "info": "notice"}
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


def _in_checkout(file: str) -> Path:
    """Return a path as seen from the repository's folder, if it is in it."""
    path, folder = Path(file), _checkout()
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _checkout() -> Path:
    """Return the folder that code hosts see paths from: the repository's; else the working folder."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
