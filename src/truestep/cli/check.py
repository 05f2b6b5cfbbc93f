"""`truestep check`: what is wrong with this training script, seen while it runs.

Owns the options and what is printed. The run and the rules are in `truestep.rules`.
"""

import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import truestep
from truestep.cli._help import Command
from truestep.cli._page import (
    ANSWER,
    STARTING,
    STYLES,
    DeviceName,
    IsModule,
    Page,
    RecordFolder,
    ScriptArguments,
    ScriptName,
    add_to_record,
    device_fields,
    named_script,
    open_record,
    short,
)
from truestep.errors import UsageError

if TYPE_CHECKING:
    from truestep.check import Result, RuleFinding, Settings
    from truestep.watch import Script

_FOUND, _INCONCLUSIVE, _OWN_FAULT, _ENDED = 1, 2, 3, 130
_EXAMPLE = "truestep check --steps 100 train.py --lr 0.1"
_RULES = "Rules"
_MAX_EVIDENCE = 400


class Format(StrEnum):
    """How the answer is printed."""

    text = "text"
    json = "json"
    sarif = "sarif"


_Steps = Annotated[
    int | None,
    typer.Option(metavar="N", help="Stop the script after N optimizer steps.", rich_help_panel=STARTING),
]
_Processes = Annotated[
    int,
    typer.Option(metavar="N", help="Start N processes through torchrun.", rich_help_panel=STARTING),
]
_Select = Annotated[
    str | None,
    typer.Option(
        metavar="RULES",
        help="Run only these: codes, names or families, as in LOOP01,stale-gradients,PAR.",
        rich_help_panel=_RULES,
    ),
]
_Ignore = Annotated[
    str | None, typer.Option(metavar="RULES", help="Do not run these.", rich_help_panel=_RULES)
]
_Rules = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Also run the rules in this folder.", rich_help_panel=_RULES),
]
_Baseline = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Report only what is not in this file.", rich_help_panel=ANSWER),
]
_WriteBaseline = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the findings to this file, for --baseline.",
        rich_help_panel=ANSWER,
    ),
]
_Fix = Annotated[
    bool,
    typer.Option(
        "--fix",
        help="Edit SCRIPT where that is safe and check again. An edit that makes it worse is withdrawn.",
        rich_help_panel=ANSWER,
    ),
]
_AsFormat = Annotated[
    Format,
    typer.Option(
        "--format", metavar="text|json|sarif", help="How to print the answer.", rich_help_panel=ANSWER
    ),
]


def check(  # noqa: PLR0913  # limits: an argument is an option of the command
    script: ScriptName,
    arguments: ScriptArguments = None,
    *,
    steps: _Steps = None,
    processes: _Processes = 1,
    device: DeviceName = None,
    is_module: IsModule = False,
    select: _Select = None,
    ignore: _Ignore = None,
    rules: _Rules = None,
    baseline: _Baseline = None,
    write_baseline: _WriteBaseline = None,
    fix: _Fix = False,
    record: RecordFolder = None,
    format_: _AsFormat = Format.text,
) -> None:
    """Run a training script and report the bugs in it.

    The script runs unmodified in the working folder. Each finding has the line, the evidence, the fix, and
    the cost where it was measured. Options of truestep come before SCRIPT.

    Ctrl-C and SIGTERM end the script and report the findings so far. With --format json or sarif only the
    answer goes to standard output, and the script's own output goes to standard error.

    To suppress a finding, add a comment to its line: # truestep: ignore[stale-gradients] and why. Settings
    for every check are in pyproject.toml: [tool.truestep.check].

    Exit codes:
      0    nothing found, or only remarks
      1    errors or warnings found
      2    inconclusive: the script failed or no optimizer step ran; or bad usage
      3    a bug in truestep (a rule or an observer failed): please report it
      130  ended by Ctrl-C or SIGTERM before anything was found

    Examples:
      truestep check train.py
      truestep check --steps 100 train.py --lr 0.1   the script gets --lr 0.1
      truestep check --select LOOP,LOSS train.py     two families of rules
      truestep check --processes 2 train.py          through torchrun
      truestep check --device cpu --steps 5 train.py a CUDA script without a GPU
      truestep check -m package.train                as python -m package.train
      truestep check --format sarif train.py > check.sarif
    """
    given = named_script(script, arguments, is_module=is_module, device=device, example=_EXAMPLE)
    if processes < 1:
        raise UsageError(f"--processes must be at least 1, got {processes}.")
    from truestep.check import read_settings

    settings = read_settings(Path.cwd()).updated(
        select=_names(select), ignore=_names(ignore), rules=(rules,) if rules else (), baseline=baseline
    )
    look = _Request(
        script=given, settings=settings, steps=steps, processes=processes, format=format_, record=record
    )
    result = look.fix() if fix else look.examine()
    look.show(result, is_fixed=fix)
    look.keep(result, baseline=write_baseline)
    raise typer.Exit(_exit_code(result))


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


@dataclass(frozen=True, kw_only=True)
class _Request:
    script: "Script"
    settings: "Settings"
    steps: int | None
    processes: int
    format: Format
    record: Path | None

    def examine(self) -> "Result":
        """Run the script and judge it; the record's folder is made when nothing else can be refused."""
        from truestep.check import examine

        stdout = None if self.format is Format.text else sys.stderr  # stdout is for the answer alone
        return examine(
            self.script,
            self.settings,
            steps=self.steps,
            processes=self.processes,
            stdout=stdout,
            before_start=lambda: open_record(self.record),
        )

    def fix(self) -> "Result":
        """Examine, change the user's files where that is safe, and return what is known of them then."""
        from truestep.check import apply_fixes

        result = self.examine()

        def show_changes(changed: dict[str, str]) -> None:
            _print_status(*_diff_lines(changed, result))
            _print_status(f"truestep: changed {', '.join(map(short, changed))}; checking again")

        try:
            fixed = apply_fixes(result, self.examine, on_change=show_changes)
        except UsageError:
            self.show(result, is_fixed=True)
            raise
        for reported, reason in fixed.withdrawn:
            where = f"{short(reported.finding.file or '')}:{reported.finding.line}"
            _print_status(
                f"truestep: withdrew the edit for {reported.rule.meta.code} at {where}. With it, {reason}"
            )
        if result.inconclusive:
            _print_status(
                f"truestep: nothing was fixed, because an edit could not be tested: {result.inconclusive}"
            )
        elif not fixed.changed:
            _print_status("truestep: nothing was changed")
        return fixed.result

    def show(self, result: "Result", *, is_fixed: bool) -> None:
        """Print the answer."""
        if self.format is Format.text:
            _Answer().show(result, is_fixed=is_fixed)
            Page().show_device(self.script)
        else:
            fields = self._fields(result) if self.format is Format.json else _sarif(result)
            print(json.dumps(fields, indent=2))

    def _fields(self, result: "Result") -> dict[str, Any]:
        return {**_fields(result), **device_fields(self.script)}

    def keep(self, result: "Result", *, baseline: Path | None) -> None:
        """Write the answer where it was asked for."""
        if self.record is not None:
            add_to_record(
                self.record, kind="check", fields={"script": self.script.path, **self._fields(result)}
            )
        if baseline is not None:
            _write_baseline(baseline, result)


def _print_status(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _diff_lines(changed: dict[str, str], result: "Result") -> list[str]:
    from truestep.rules import diff

    lines: list[str] = []
    for file, text in changed.items():
        source = result.evidence.source(file)
        if source is not None:
            lines += diff(source, text, name=short(file))
    return lines


def _write_baseline(path: Path, result: "Result") -> None:
    from truestep.check import write_baseline

    write_baseline(path, result.findings, evidence=result.evidence)
    count = len(result.findings)
    print(f"truestep: wrote {count} finding{'s' * (count != 1)} to {path}", file=sys.stderr)


def _exit_code(result: "Result") -> int:
    from truestep.check.examine import INTERRUPTED

    if result.code and result.code not in INTERRUPTED:
        return _INCONCLUSIVE
    if result.has_mistakes:
        return _FOUND
    if result.evaluation.failed or _switched_off(result):
        return _OWN_FAULT
    if result.code:
        return _ENDED
    return _INCONCLUSIVE if result.inconclusive else 0


def _fields(result: "Result") -> dict[str, Any]:
    return {
        "findings": [reported.as_fields() for reported in result.findings],
        "not_observed": [rule.meta.code for rule in result.evaluation.not_observed],
        "steps": result.num_steps,
        "inconclusive": result.inconclusive,
        "exit_code": result.code,
        "hidden": result.num_hidden,
        "unused_comments": [{"file": item.file, "line": item.line} for item in result.unused],
        "failed_rules": result.evaluation.failed,
        "failed_observers": _switched_off(result),
    }


def _switched_off(result: "Result") -> list[str]:
    """Return what truestep could not observe, and why."""
    texts = (text for process in result.evidence.processes for text in process.switched_off)
    return list(dict.fromkeys(texts))


def _sarif(result: "Result") -> dict[str, Any]:
    from truestep.check import as_sarif

    return as_sarif(result.findings, rules=result.rules, version=truestep.__version__, folder=Path.cwd())


class _Answer:
    """The answer for a terminal: findings, the worst first, each with its line of code."""

    def __init__(self) -> None:
        self._page = Page()

    def show(self, result: "Result", *, is_fixed: bool) -> None:
        """Print all of it; what `--fix` would do, unless it has been done."""
        remarks = [reported for reported in result.findings if reported.severity == "info"]
        for reported in result.findings:
            if remarks and reported is remarks[0]:
                self._page.print("")
                self._page.print(("remarks, which do not change the exit code:", "bold"))
            self._show(reported, result)
        for comment, name in result.unknown:
            where = f"{short(comment.file)}:{comment.line}"
            self._page.print(f"{where}: {name} is not a rule, so this comment suppresses nothing")
        unknown = {comment for comment, _ in result.unknown}
        for comment in result.unused:
            if comment not in unknown:
                names = ", ".join(comment.names)
                self._page.print(
                    f"{short(comment.file)}:{comment.line}: suppresses nothing; remove ignore[{names}]"
                )
        for text in result.evaluation.failed:
            self._page.print(("a rule failed: ", "bold red"), text)
        for text in _switched_off(result):
            self._page.print(("not observed, so findings may be wrong or missing: ", "bold red"), text)
        if not is_fixed:
            self._show_fixes(result)
        self._show_end(result)

    def _show_fixes(self, result: "Result") -> None:
        from truestep.check import propose

        lines = _diff_lines(propose(result.findings, result.evidence), result)
        if lines:
            self._page.print("")
            self._page.print(("with --fix:", "bold"))
        styles = {"+": "green", "-": "red", "@": "dim"}
        for line in lines:
            self._page.print((line, styles.get(line[0], "dim")))

    def _show(self, reported: "RuleFinding", result: "Result") -> None:
        finding = reported.finding
        rule = reported.rule
        self._page.print("")
        self._page.print((reported.severity, STYLES[reported.severity]), f"  {rule.meta.code} {rule.name}")
        if finding.file:
            source = result.evidence.source(finding.file)
            text = source.line(finding.line).strip() if source else ""
            self._page.show_place(finding.file, finding.line, source=text)
        self._page.print(f"  {finding.message}")
        self._page.show_rows({"seen": _evidence_text(reported), "cost": finding.cost, "fix": reported.fix})
        for item in reported.consequences:
            where = f"line {item.finding.line}: " if item.finding.line else ""
            words = f"{item.rule.meta.code} {where}{item.finding.message}"
            self._page.show_rows({"so": words})

    def _show_end(self, result: "Result") -> None:
        steps = result.num_steps
        num = {name: sum(reported.severity == name for reported in result.findings) for name in STYLES}
        plural = {"error": "errors", "warning": "warnings", "info": "remarks"}
        single = {"error": "error", "warning": "warning", "info": "remark"}
        parts = [
            f"{count} {(single if count == 1 else plural)[name]}" for name, count in num.items() if count
        ]
        self._page.print("")
        if result.inconclusive is not None:
            self._page.print(("inconclusive", "bold yellow"), f": {result.inconclusive}")
        if parts or result.inconclusive is None:
            style = "bold green" if not result.has_mistakes else "bold"
            self._page.print((", ".join(parts) if parts else "nothing found", style), f" in {steps} steps")
        ran = len(result.rules) - len(result.evaluation.not_observed)
        rest = f"{ran} rule{'s' * (ran != 1)} ran, {len(result.evaluation.not_observed)} did not apply"
        words = "finding" if result.num_hidden == 1 else "findings"
        hidden = f"; {result.num_hidden} {words} suppressed" if result.num_hidden else ""
        self._page.print((rest + hidden, "dim"))


def _evidence_text(reported: "RuleFinding") -> str:
    finding = reported.finding
    times = f", {finding.count} times" if finding.count > 1 else ""
    when = f"step {finding.step}{times}" if finding.step else "before the first step"
    if not finding.evidence:
        return when if finding.step is not None else ""
    text = (
        finding.evidence
        if len(finding.evidence) <= _MAX_EVIDENCE
        else finding.evidence[:_MAX_EVIDENCE] + "..."
    )
    return f"{when}: {text}" if finding.step is not None else text


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    settings = {"allow_interspersed_args": False, "ignore_unknown_options": False}
    app.command("check", cls=Command, context_settings=settings)(check)
