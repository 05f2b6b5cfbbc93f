"""Findings as plain text: for errors, logs and notebooks.

Owns the words. Colours and lines of a terminal are left to the command.
"""

from pathlib import Path

from truestep.base.cells import line_name
from truestep.check.evaluate import RuleFinding
from truestep.check.examine import Result
from truestep.errors import printable
from truestep.rules.evidence import Evidence

_COUNTING = "torch.optim.Optimizer.step"
_MAX_EVIDENCE, _MAX_UNSEEN = 400, 5
_NAMES = {"error": ("error", "errors"), "warning": ("warning", "warnings"), "info": ("remark", "remarks")}


def describe(reported: RuleFinding, evidence: Evidence, *, where: str | None = None) -> str:
    """Return a finding in a few lines: rule, place, message, what was seen, and the fix."""
    finding = reported.finding
    lines = [f"{reported.severity}  {reported.rule.meta.code} {reported.rule.name}"]
    if finding.file:
        source = evidence.source(finding.file)
        text = source.line(finding.line).strip() if source else ""
        lines += [f"  {where or place_of(reported)}", *([f"    {text}"] if text else [])]
    lines.append(f"  {finding.message}")
    rows = {"seen": evidence_text(reported), "cost": finding.cost, "fix": reported.fix}
    lines += [f"  {name:<7}{words}" for name, words in rows.items() if words]
    for item in reported.consequences:
        at = f"line {item.finding.line}: " if item.finding.line else ""
        lines.append(f"  {'so':<7}{item.rule.meta.code} {at}{item.finding.message}")
    return printable("\n".join(lines), keep="\n\t")


def place_of(reported: RuleFinding) -> str:
    """Return file and line, as seen from the working folder; empty if there is none."""
    file = reported.finding.file
    if not file:
        return ""
    path = Path(file)
    short = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
    return line_name(file, reported.finding.line, shown=short)


def evidence_text(reported: RuleFinding) -> str:
    """Return what was measured, and in which step."""
    finding = reported.finding
    times = f", {finding.count} times" if finding.count > 1 else ""
    when = f"step {finding.step}{times}" if finding.step else "before the first step"
    if not finding.evidence:
        return when if finding.step is not None else ""
    text = finding.evidence
    text = text if len(text) <= _MAX_EVIDENCE else text[:_MAX_EVIDENCE] + "..."
    return f"{when}: {text}" if finding.step is not None else text


def count_text(result: Result) -> str:
    """Return how many findings there are of each severity: `1 error, 2 remarks`; `nothing found`."""
    num = {name: sum(item.severity == name for item in result.findings) for name in _NAMES}
    parts = [f"{count} {_NAMES[name][count != 1]}" for name, count in num.items() if count]
    return ", ".join(parts) or "nothing found"


def outcome_text(result: Result) -> str:
    """Return in how many steps so much was found: ` in 696 steps (you stopped the script)`."""
    is_counting = not any(_COUNTING in text for text in result.switched_off)
    notes = [result.stopped_by if result.num_steps else None, None if is_counting else "not all were counted"]
    words = "; ".join(filter(None, notes))
    return f" in {steps_text(result.num_steps)}{f' ({words})' if words else ''}"


def steps_text(num: int) -> str:
    """Return a number of steps in words."""
    return f"{num} step{'s' * (num != 1)}"


def rules_text(result: Result) -> str:
    """Return how many rules ran, how many findings are not shown, and what the others had nothing of."""
    ran = len(result.rules) - len(result.evaluation.not_observed)
    text = f"{ran} rule{'s' * (ran != 1)} ran"
    words = "finding" if result.num_hidden == 1 else "findings"
    text += f"; {result.num_hidden} {words} suppressed" if result.num_hidden else ""
    more = "remark" if result.num_quiet == 1 else "remarks"
    text += f"; {result.num_quiet} more {more} with -v" if result.num_quiet else ""
    rest = len(result.not_seen) - _MAX_UNSEEN
    shown = ", ".join(result.not_seen[:_MAX_UNSEEN]) + (f" and {rest} more" if rest > 0 else "")
    return text + (f"; not seen: {shown}" if result.not_seen else "")
