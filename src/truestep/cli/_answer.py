"""The answer of `truestep check` in each of its forms: for a terminal, for programs, for code hosts.

Owns what they look like. What was found is in `truestep.check`; where the answer goes is up to the command.
"""

import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from truestep.cli._page import STYLES, Page, device_fields, short

if TYPE_CHECKING:
    from truestep.check import Fixed, Proposed, Result, RuleFinding
    from truestep.check.early import Key
    from truestep.rules.evidence import Evidence
    from truestep.watch import Script


class Format(StrEnum):
    """How the answer is printed."""

    text = "text"
    json = "json"
    jsonl = "jsonl"
    sarif = "sarif"
    github = "github"
    diff = "diff"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a check gave, in any form."""

    script: "Script"
    result: "Result"
    patch: str
    """The edits that need no test; what `--fix` has changed, if it was asked to."""
    proposed: "Proposed | None" = None
    """The same for text, with the edits that do need one; None after `--fix`."""
    is_verbose: bool = False
    above: "Collection[Key]" = ()
    """Findings that were printed while the script ran."""

    def render(self, format_: Format) -> str:
        """Return the answer in a form, with a newline at the end unless it is empty."""
        # A path can have bytes that are not UTF-8: they must not cost the answer.
        return self._render(format_).encode(errors="replace").decode()

    def _render(self, format_: Format) -> str:
        from truestep.check import as_annotations, as_sarif

        match format_:
            case Format.text:
                file = io.StringIO()
                self.show(Page(file))
                return file.getvalue()
            case Format.github:
                return "".join(f"{line}\n" for line in as_annotations(self.result))
            case Format.diff:
                return self.patch
            case Format.jsonl:
                new = [json_line("finding", item.as_fields()) for item in self.result.new(self.above)]
                return "".join([*new, json_line("summary", self.as_fields())])
            case Format.json:
                fields: Any = self.as_fields()
            case Format.sarif:
                fields = as_sarif(self.result)
        return json.dumps(fields, indent=2) + "\n"

    def show(self, page: Page) -> None:
        """Print it as text: all but the findings printed above, and the edits that are proposed."""
        _show_text(self, page)
        page.show_device(self.script)

    def as_fields(self) -> dict[str, Any]:
        """Return what the command's JSON has."""
        return {**result_fields(self.result), "diff": self.patch, **device_fields(self.script)}


def json_line(kind: str, fields: Mapping[str, Any]) -> str:
    """Return a line of `--format jsonl`."""
    return json.dumps({"kind": kind, **fields}) + "\n"


def place_of(reported: "RuleFinding") -> str:
    """Return the file and line of a finding."""
    return f"{short(reported.finding.file or '')}:{reported.finding.line}"


def untested_text(untested: "Sequence[RuleFinding]") -> str:
    """Return for which findings there are edits that are not shown."""
    names = ", ".join(f"{item.rule.meta.code} at {place_of(item)}" for item in untested)
    return f"--fix has untested edits for {names}: it runs the script with them and keeps what works"


def fixed_lines(fixed: "Fixed") -> list[str]:
    """Return what came of `--fix`, with the reason for each edit that was withdrawn."""
    lines = [
        f"truestep: withdrew the edit for {reported.rule.meta.code} at {place_of(reported)}. "
        f"With it, {reason}"
        for reported, reason in fixed.withdrawn
    ]
    if fixed.result.inconclusive:
        reason = f"an edit could not be tested: {fixed.result.inconclusive}"
        return [*lines, f"truestep: nothing was fixed, because {reason}"]
    num_left = sum(reported.severity != "info" for reported in fixed.result.findings)
    counts = f"fixed {len(fixed.kept)} · withdrew {len(fixed.withdrawn)} · {num_left} left"
    return [*lines, f"truestep: {counts}"]


def diff_lines(changed: Mapping[str, str], result: "Result") -> list[str]:
    """Return the edits of some files as lines to read."""
    from truestep.rules import diff

    sources = ((result.evidence.source(file), file) for file in changed)
    return [
        line for source, file in sources if source for line in diff(source, changed[file], name=short(file))
    ]


def make_patch(changed: Mapping[str, str], result: "Result") -> str:
    """Return the edits of some files for `git apply`."""
    from truestep.rules.kit.edits import patch

    sources = ((result.evidence.source(file), file) for file in changed)
    return "".join(patch(source, changed[file], name=short(file)) for source, file in sources if source)


def result_fields(result: "Result") -> dict[str, Any]:
    """Return what the command's JSON has."""
    return {
        "findings": [reported.as_fields() for reported in result.findings],
        "not_observed": [rule.meta.code for rule in result.evaluation.not_observed],
        "not_seen": result.not_seen,
        "steps": result.num_steps,
        "inconclusive": result.inconclusive,
        "exit_code": result.code,
        "hidden": result.num_hidden,
        "unused_comments": [{"file": item.file, "line": item.line} for item in result.unused],
        "failed_rules": result.evaluation.failed,
        "failed_observers": result.switched_off,
        "not_checked": result.not_checked,
    }


def show_finding(reported: "RuleFinding", evidence: "Evidence", *, page: Page) -> None:
    """Print a finding with its line of code."""
    from truestep.check.describe import evidence_text

    finding, rule = reported.finding, reported.rule
    page.print("")
    page.print((reported.severity, STYLES[reported.severity]), f"  {rule.meta.code} {rule.name}")
    if finding.file:
        source = evidence.source(finding.file)
        text = source.line(finding.line).strip() if source else ""
        page.show_place(finding.file, finding.line, source=text)
    page.print(f"  {finding.message}")
    page.show_rows({"seen": evidence_text(reported), "cost": finding.cost, "fix": reported.fix})
    for item in reported.consequences:
        where = f"line {item.finding.line}: " if item.finding.line else ""
        page.show_rows({"so": f"{item.rule.meta.code} {where}{item.finding.message}"})


def _show_text(answer: Answer, page: Page) -> None:
    """Print findings, the worst first, each with its line of code, and what else is known."""
    result = answer.result
    new = result.new(answer.above)
    remarks = [reported for reported in new if reported.severity == "info"]
    for reported in new:
        if remarks and reported is remarks[0]:
            page.print("")
            page.print(("remarks, which do not change the exit code:", "bold"))
        show_finding(reported, result.evidence, page=page)
    _show_known([reported for reported in result.findings if reported not in new], page)
    for comment, name in result.unknown:
        where = f"{short(comment.file)}:{comment.line}"
        page.print(f"{where}: {name} is not a rule, so this comment suppresses nothing")
    unknown = {comment for comment, _ in result.unknown}
    for comment in result.unused:
        if comment not in unknown:
            names = ", ".join(comment.names)
            page.print(f"{short(comment.file)}:{comment.line}: suppresses nothing; remove ignore[{names}]")
    show_faults(result, page)
    if answer.proposed is not None:
        _show_fixes(answer.proposed, result, page)
    _show_end(result, page)
    if answer.is_verbose:
        for rule in result.evaluation.not_observed:
            page.print((f"did not apply: {rule.meta.code} {rule.name}", "dim"))


def show_faults(result: "Result", page: Page) -> None:
    """Print what truestep could not do."""
    for text in result.evaluation.failed:
        page.print(("a rule failed: ", "bold red"), text)
    for text in result.switched_off:
        page.print(("not observed, so findings may be wrong or missing: ", "bold red"), text)
    for text in result.not_checked:
        page.print(("not checked: ", "bold"), text)


def _show_fixes(proposed: "Proposed", result: "Result", page: Page) -> None:
    lines = diff_lines(proposed.changed, result)
    if lines:
        page.print("")
        page.print(("with --fix:", "bold"))
    styles = {"+": "green", "-": "red", "@": "dim"}
    for line in lines:
        page.print((line, styles.get(line[0], "dim")))
    if proposed.untested:
        page.print("")
        page.print(untested_text(proposed.untested))


def _show_known(known: "Sequence[RuleFinding]", page: Page) -> None:
    if known:
        page.print("")
        page.print(("reported above, while the script ran:", "bold"))
    for reported in known:
        finding, rule = reported.finding, reported.rule
        where = f"  {short(finding.file)}:{finding.line}" if finding.file else ""
        times = f", {finding.count} times" if finding.count > 1 else ""
        words = f"  {rule.meta.code} {rule.name}{where}{times}"
        page.print("  ", (reported.severity, STYLES[reported.severity]), words)


def _show_end(result: "Result", page: Page) -> None:
    from truestep.check.describe import count_text, outcome_text, rules_text

    page.print("")
    if result.inconclusive is not None:
        page.print(("inconclusive", "bold yellow"), f": {result.inconclusive}")
    if result.findings or result.inconclusive is None:
        style = "bold green" if not result.has_mistakes else "bold"
        page.print((count_text(result), style), outcome_text(result))
    page.print((rules_text(result), "dim"))
