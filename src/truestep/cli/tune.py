"""`truestep tune`: which speed settings pay off for this script on this machine, measured.

Owns the options and what is printed. Trials, intervals and what is kept are in `truestep.tune`.
"""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from truestep.cli._help import Command
from truestep.cli._page import (
    AsFormat,
    Format,
    IsModule,
    Page,
    ScriptArguments,
    ScriptName,
    named_script,
)
from truestep.cli._progress import Progress
from truestep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from truestep.tune.knob import ScriptFacts
    from truestep.tune.search.result import Result, Trial
    from truestep.watch import Script

_EXAMPLE = "truestep tune --budget 300 train.py --lr 0.1"
_measured: Any = partial(typer.Option, rich_help_panel="What to measure")
_BUDGET_S = 120.0
_INCONCLUSIVE, _ENDED = 2, 130
_STYLES = {"pays": "green", "refused": "bold red", "failed": "red"}
Line = list[str | tuple[str, str]]
"""A line of text, each part with its style or without."""
_DIM = ("skipped", "untested")


_Knobs = Annotated[
    str | None,
    _measured(metavar="NAME,NAME", help="Try only these. Default: all that may pay off for this script."),
]
_Budget = Annotated[
    float, _measured(metavar="SECONDS", help="How long it may take.", show_default=f"{_BUDGET_S:g}")
]


def tune(  # limits: an argument is an option of the command
    script: ScriptName,
    arguments: ScriptArguments = None,
    *,
    knobs: _Knobs = None,
    budget: _Budget = _BUDGET_S,
    is_module: IsModule = False,
    format_: AsFormat = Format.text,
) -> None:
    """Measure which speed settings pay off for a script on this machine.

    Each setting (a knob) is tried alone and on top of those that paid off. The unmodified script and the
    changed one take short turns, in copies of the working folder. A setting that pays off is kept; one that
    changes learning is refused. Options of truestep come before SCRIPT.

    Settings for truestep.Run are written to truestep.toml beside SCRIPT; for all others, tune prints the
    lines to add. The script itself is not changed.

    Exit codes:
      0    measured, whether something pays off or not
      2    no setting could be measured, or bad usage
      3    a bug in truestep: please report it
      130  ended by Ctrl-C: what was measured so far is printed

    Examples:
      truestep tune train.py
      truestep tune --budget 300 train.py --lr 0.1   the script gets --lr 0.1
      truestep tune --knobs workers,threads train.py
    """
    given = named_script(script, arguments, is_module=is_module, example=_EXAMPLE)
    with Progress(f"starting {given.name}") as progress:
        answer = _Answer(given, is_json=format_ is Format.json, progress=progress)
        answer.show_settings(knobs=knobs, budget_s=budget)


class _Answer:
    """One answer: progress while it is found, then what was found, in the form that was asked for."""

    def __init__(self, script: "Script", *, is_json: bool, progress: Progress) -> None:
        self._script, self._on_status = script, progress.status
        self._is_json = is_json
        self._page = Page()
        self._has_head = False

    def show_settings(self, *, knobs: str | None, budget_s: float) -> None:
        from truestep.tune.knobs import pick
        from truestep.tune.search.search import TuneOptions
        from truestep.tune.search.search import tune as tune_script

        names = tuple(word.strip() for word in knobs.split(",")) if knobs else ()
        asked = TuneOptions(budget_s=budget_s, knobs=pick(names))
        shown: dict[str, Any] = {"on_trial": self._show_trial, "on_facts": self._show_time}
        found = tune_script(
            self._script, asked, on_status=self._on_status, **({} if self._is_json else shown)
        )
        written, trouble = _write_settings(found)
        self._finish(found, [] if self._is_json else _closing(found, written))
        if trouble is not None:
            raise trouble
        if found.inconclusive is not None:
            raise typer.Exit(_ENDED if found.is_interrupted else _INCONCLUSIVE)

    def _finish(self, found: "Result", closing: "Sequence[Line]") -> None:
        """Print the answer."""
        if self._is_json:
            print(json.dumps(found.as_fields(), indent=2))
        else:
            for line in closing:
                self._page.print(*line)

    def _show_time(self, facts: "ScriptFacts") -> None:
        from truestep.watch.evidence.phases import phase_words

        shares = f": {phase_words(facts.shares)}" if facts.shares else ""
        self._page.print(f"a step takes {1e3 * facts.step_s:.3g} ms{shares}")
        self._page.print("")

    def _show_trial(self, trial: "Trial") -> None:
        if not self._has_head:
            self._has_head = True
            head = f"{'knob':<17}{'tried':<13}{'speed':>6} {'interval':<15}{'memory':>6}  bits"
            self._page.print((head, "bold"))
        self._page.print(*_row(trial))


def _write_settings(result: "Result") -> tuple[Path | None, UsageError | None]:
    """Return the file that was written, or why it was not: the answer comes first."""
    try:
        return result.write_settings(), None
    except UsageError as error:
        return None, error


def _row(trial: "Trial") -> list[tuple[str, str]]:
    name = trial.knob + (" (+)" if trial.on_top_of else "")
    if trial.status in _DIM:
        words = f" {trial.words}" if trial.words else ""
        return [(f"{name:<17}", ""), (f"{trial.status}{words}: {trial.reason}", "dim")]
    ratio = trial.found.ratio if trial.found is not None else None
    ratio_text = f"{ratio.median:6.2f} {f'{ratio.low:.2f} to {ratio.high:.2f}':<15}" if ratio else f"{'':<22}"
    memory = f"{trial.memory:6.2f}" if trial.memory is not None else f"{'':<6}"
    bits = "may vary" if trial.changes_bits else "the same"
    status = "pays" if trial.status == "pays" else trial.reason
    if trial.status in ("refused", "failed"):
        status = f"{trial.status}: {trial.reason}"
    return [
        (f"{name:<17}{trial.words:<13}{ratio_text}{memory}  {bits:<8}  ", ""),
        (status, _STYLES.get(trial.status, "")),
    ]


def _closing(result: "Result", written: Path | None) -> list[Line]:
    """Return what follows from the table."""
    final = result.final.ratio if result.final is not None else None
    lines: list[Line] = [[""]]
    if result.inconclusive is not None:
        lines.append([("inconclusive", "bold yellow"), f": {result.inconclusive}"])
        paid = [f"{trial.knob} {trial.words}" for trial in result.trials if trial.status == "pays"]
        lines += [[f"looked faster so far: {', '.join(paid)}"]] if paid else []
    elif result.settings and final is not None:
        kept = ", ".join(f"{name} {value}" for name, value in result.settings.items())
        spread = f" ({final.low:.2f} to {final.high:.2f}) with {kept}, confirmed by a second measurement"
        lines.append([(f"{final.median:.2f} times as fast", "bold green"), spread])
    else:
        lines.append(_unchanged(result))
    if result.untested and final is not None:
        lines.append([result.untested])
    if result.learning is not None:
        lines.append([f"learning: {result.learning.words}"])
    if written is not None:
        lines.append([f"written: {written}; truestep.Run reads its settings from there"])
    by_hand = [code for name, code in result.lines.items() if name not in result.for_run]
    lines += [[("  " + line, "cyan")] for code in by_hand for line in code]
    if any(trial.on_top_of for trial in result.trials):
        lines.append([("(+): on top of the settings kept before it", "dim")])
    return lines


def _unchanged(result: "Result") -> Line:
    """Return why nothing is to be changed: not more than was measured."""
    if result.final is None:
        counts = result.outcomes
        others = [f"{counts[name]} {name}" for name in ("refused", "failed") if counts[name]]
        gained = f"no clear gain in {counts['no gain']} of {counts.total()} settings"
        words = "; ".join([gained, *others, *([result.untested] if result.untested else [])])
        return [(words, "bold")]
    if result.final.ratio is None:
        why = f"could not be measured a second time ({result.final.failed})"
    else:
        ratio = result.final.ratio
        is_learning = result.learning is None or result.learning.survives
        lost = "was not in a second measurement" if is_learning else "changes learning when combined"
        why = f"{lost} ({ratio.median:.2f}, {ratio.low:.2f} to {ratio.high:.2f})"
    return [("nothing to change", "bold"), f": what looked faster {why}"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Command, context_settings={"allow_interspersed_args": False})(tune)
