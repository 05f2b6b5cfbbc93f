"""Judging: all rules over one run's evidence.

Owns which rules have something to say, and that one cause makes one finding. What is hidden on purpose is in
`suppress`, how it is printed is left to the command.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from truestep.rules.evidence import Evidence
from truestep.rules.rule import SEVERITIES, Finding, Rule, Severity


@dataclass(frozen=True, kw_only=True)
class RuleFinding:
    """A finding with the rule that made it, and what follows from it."""

    rule: Rule
    finding: Finding
    consequences: tuple["RuleFinding", ...] = ()

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.finding.severity or self.rule.meta.severity

    @property
    def fix(self) -> str:
        """What to do."""
        return self.finding.fix or self.rule.meta.fix

    def as_fields(self) -> dict[str, Any]:
        """Return it as the contract of the command's JSON says."""
        finding = self.finding
        return {
            "code": self.rule.meta.code,
            "name": self.rule.name,
            "severity": self.severity,
            "file": finding.file,
            "line": finding.line,
            "message": finding.message,
            "evidence": finding.evidence,
            "cost": finding.cost,
            "fix": self.fix,
            "step": finding.step,
            "count": finding.count,
            "consequences": [reported.as_fields() for reported in self.consequences],
        }


@dataclass(kw_only=True)
class Evaluation:
    """What all rules say."""

    findings: list[RuleFinding] = field(default_factory=list)
    not_observed: list[Rule] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Rules that could not be run, and why: a mistake of the rule."""


def evaluate_rules(rules: Iterable[Rule], evidence: Evidence) -> Evaluation:
    """Run the rules and return what they find, the worst first, consequences under their causes."""
    result = Evaluation()
    found: list[RuleFinding] = []
    for rule in rules:
        try:
            if not _is_observed(rule, evidence):
                result.not_observed.append(rule)
                continue
            found += [RuleFinding(rule=rule, finding=item) for item in _merge(rule.check(evidence))]
        except Exception as error:  # noqa: BLE001 - one rule must not take the others' findings with it
            result.failed.append(f"{rule.meta.code} {rule.name}: {type(error).__name__}: {error}")
    result.findings = sorted(_fold(found), key=_rank)
    return result


def flatten(findings: Iterable[RuleFinding]) -> Iterator[RuleFinding]:
    """Yield each finding, and after it what follows from it."""
    for reported in findings:
        yield reported
        yield from reported.consequences


def leave_out(findings: Iterable[RuleFinding], *, where: Callable[[RuleFinding], bool]) -> list[RuleFinding]:
    """Return the others, the worst first. What follows from one that is left out is told by itself."""
    kept = []
    for reported in findings:
        is_left_out = where(reported)
        follows = [item for item in reported.consequences if not where(item)]
        if is_left_out:
            kept += follows
        else:
            kept.append(
                RuleFinding(rule=reported.rule, finding=reported.finding, consequences=tuple(follows))
            )
    return sorted(kept, key=_rank)


def _is_observed(rule: Rule, evidence: Evidence) -> bool:
    if rule.meta.needs and not evidence.has(*rule.meta.needs):
        return False
    return rule.is_observed is None or rule.is_observed(evidence)


def _merge(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding for each line: the first, with the number of all."""
    first: dict[tuple[str | None, int | None], Finding] = {}
    for finding in findings:
        place = (finding.file, finding.line)
        known = first.get(place)
        if known is None:
            first[place] = finding
        else:
            fields = vars(known) | {"count": known.count + finding.count}
            first[place] = Finding(**fields)
    return list(first.values())


def _fold(found: list[RuleFinding]) -> list[RuleFinding]:
    """Put what follows from a finding under it, if the rule says that it does."""
    causes = {reported.rule.meta.code: reported.rule.meta.caused_by for reported in found}
    under: dict[str, list[RuleFinding]] = {}
    kept = []
    for reported in found:
        root = _root(reported.rule.meta.code, causes)
        if root == reported.rule.meta.code:
            kept.append(reported)
        else:
            under.setdefault(root, []).append(reported)
    result = []
    for reported in kept:
        follows = under.pop(reported.rule.meta.code, [])
        result.append(RuleFinding(rule=reported.rule, finding=reported.finding, consequences=tuple(follows)))
    return result


def _root(code: str, causes: dict[str, tuple[str, ...]]) -> str:
    """Return the rule that explains this one's findings in the end: itself, if none that was broken does."""
    seen = {code}
    while True:
        cause = next((item for item in causes[code] if item in causes), None)
        if cause is None or cause in seen:
            return code
        seen.add(cause)
        code = cause


def _rank(reported: RuleFinding) -> tuple[int, int, str]:
    finding = reported.finding
    return (SEVERITIES.index(reported.severity), finding.step or 0, reported.rule.meta.code)
