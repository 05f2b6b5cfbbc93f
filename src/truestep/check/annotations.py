"""Findings as workflow commands, which GitHub Actions shows at the lines of a pull request.

Owns that form alone. See https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands.
"""

from collections.abc import Iterable, Iterator

from truestep.check.evaluate import RuleFinding

_LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def as_annotations(findings: Iterable[RuleFinding], *, inconclusive: str | None) -> Iterator[str]:
    """Yield one line for each finding, the worst first: GitHub shows ten of each level.

    What follows from a finding is in its text.
    """
    if inconclusive is not None:
        yield _command("error", inconclusive, title="truestep check: inconclusive")
    for reported in findings:
        finding, rule = reported.finding, reported.rule
        place = {"file": finding.file, "line": finding.line if finding.file else None}
        title = f"{rule.meta.code} {rule.name}"
        yield _command(_LEVELS[reported.severity], "\n".join(_texts(reported)), **place, title=title)


def _texts(reported: RuleFinding) -> Iterator[str]:
    finding = reported.finding
    yield finding.message
    if finding.evidence:
        yield f"Seen: {finding.evidence}"
    if finding.cost:
        yield f"Cost: {finding.cost}"
    yield f"Fix: {reported.fix}"
    for item in reported.consequences:
        yield f"So: {item.rule.meta.code} {item.finding.message}"


def _command(level: str, message: str, **properties: str | int | None) -> str:
    given = {name: str(value) for name, value in properties.items() if value is not None}
    words = ",".join(f"{name}={_escape(value, also=':,')}" for name, value in given.items())
    return f"::{level} {words}::{_escape(message)}"


def _escape(text: str, *, also: str = "") -> str:
    """Return a text of one line: what would end a command or a property is written as its number."""
    for character in "%\r\n" + also:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
