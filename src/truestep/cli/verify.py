"""`truestep verify`: whether a script gives the same bits when it runs again, and if not, why.

Owns the options and what is printed. The runs and the reasons are in `truestep.verify`.
"""

import dataclasses
import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from truestep.cli._help import Command
from truestep.cli._page import (
    AsFormat,
    DeviceName,
    Format,
    IsModule,
    IsQuiet,
    Page,
    RecordFolder,
    ScriptArguments,
    ScriptName,
    add_to_record,
    answer_option,
    device_fields,
    line_name,
    named_script,
    open_record,
    starting_option,
)
from truestep.cli._progress import Progress
from truestep.errors import UsageError

if TYPE_CHECKING:
    from truestep.verify import Difference, RunSummary, Script, Verdict, VerifyOptions


_EXAMPLE = "truestep verify --kill train.py --lr 0.1"
_way: Any = partial(typer.Option, rich_help_panel="What to compare with")


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
    """Read `1,2,4`."""
    if text is None:
        return ()
    try:
        numbers = tuple(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError as error:
        raise UsageError(f"{option} takes numbers separated by commas, got {text!r}.") from error
    return numbers


def _each(**numbers: str | None) -> dict[str, Any]:
    return {name: _numbers(f"--{name}", text) for name, text in numbers.items()}


def _variable(text: str) -> dict[str, str | None]:
    """Read `NAME=VALUE`, or `NAME=` to remove it."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--env takes NAME=VALUE, or NAME= to remove the variable, got {text!r}.")
    return {name: value or None}


def _words(text: str) -> tuple[str, ...]:
    """Split arguments as a shell does."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            f"--resume-with cannot be read ({error}), got {text!r}. Quote it as for a shell."
        ) from error


def _read(
    *, resume_with: str | None, env: list[str] | None, against: list[str] | None, save: Path | None
) -> dict[str, Any]:
    """Read what is given as text."""
    return {
        "resume_arguments": _words(resume_with or ""),
        "environments": tuple(map(_variable, env or ())),
        "against": tuple(against or ()),
        "save": save and save.absolute(),
    }


_Runs = Annotated[int, _way(metavar="N", help="How often to run it unmodified. More runs find rarer races.")]
_Kill = Annotated[bool, _way("--kill", help="Kill it in the middle and resume it.")]
_Processes = Annotated[str | None, _way(metavar="N,N", help="Start it through torchrun with N processes.")]
_Workers = Annotated[str | None, _way(metavar="N,N", help="Give its DataLoaders N workers.")]
_Threads = Annotated[str | None, _way(metavar="N,N", help="Run it with OMP_NUM_THREADS=N.")]
_Env = Annotated[
    list[str] | None,
    _way(metavar="NAME=VALUE", help="Run it with this variable set; NAME= removes it. May be repeated."),
]
_Compile = Annotated[bool, _way("--compile", help="torch.compile, with float64 as judge.")]
_Against = Annotated[
    list[str] | None,
    _way(
        metavar="PYTHON|COMMIT|FILE",
        help="Another interpreter (another torch), another commit, or a fingerprint. May be repeated.",
    ),
]
_Save = Annotated[
    Path | None,
    answer_option(metavar="FILE", help="Write the fingerprint of the run, if it is reproducible."),
]
_Steps = Annotated[
    int, starting_option(metavar="N", help="How many optimizer steps to run; 0 runs to the end.")
]
_Timeout = Annotated[
    float | None, starting_option(metavar="SECONDS", help="End after this time, with what is known by then.")
]
_NoProof = Annotated[bool, answer_option("--no-proof", help="Make no experiments to confirm a cause.")]
_ResumeWith = Annotated[
    str | None,
    starting_option(metavar="ARGS", help="Extra arguments that the script needs to resume, for --kill."),
]


def verify(  # noqa: PLR0913  # limits: an argument is an option of the command
    script: ScriptName,
    arguments: ScriptArguments = None,
    *,
    runs: _Runs = 2,
    kill: _Kill = False,
    processes: _Processes = None,
    workers: _Workers = None,
    threads: _Threads = None,
    env: _Env = None,
    compile_: _Compile = False,
    against: _Against = None,
    save: _Save = None,
    steps: _Steps = 100,
    timeout: _Timeout = None,
    resume_with: _ResumeWith = None,
    no_proof: _NoProof = False,
    device: DeviceName = None,
    is_module: IsModule = False,
    record: RecordFolder = None,
    format_: AsFormat = Format.text,
    quiet: IsQuiet = False,
) -> None:
    """Run a script twice and compare the runs bit for bit.

    After every optimizer step, verify compares losses, gradients, weights, optimizer state, buffers and all
    other tensors that the script keeps or saves. If one differs, it names the operation, its line, the cause
    and the fix. The runs happen in copies of the working folder. Options of truestep come before SCRIPT.

    Exit codes:
      0    all runs are the same; another version may differ by rounding
      1    a run differs
      2    inconclusive, or bad usage
      3    a bug in truestep: please report it
      130  ended by Ctrl-C or SIGTERM before a difference was found

    Examples:
      truestep verify train.py                       twice, 100 steps each
      truestep verify --kill --resume-with="--resume last.pt" train.py
      truestep verify --against HEAD~1 train.py
    """
    given = named_script(script, arguments, is_module=is_module, device=device, example=_EXAMPLE)
    with Progress(f"starting {given.name}", is_quiet=quiet) as progress:
        from truestep.verify import VerifyOptions  # a second, so the line is there before

        asked = VerifyOptions(
            steps=steps or None,
            runs=runs,
            is_killed=kill,
            is_compiled=compile_,
            timeout_s=timeout,
            has_proof=not no_proof,
            **_each(processes=processes, workers=workers, threads=threads),
            **_read(resume_with=resume_with, env=env, against=against, save=save),
        )
        answer = _Answer(record, is_json=format_ is Format.json, is_quiet=quiet)
        raise typer.Exit(answer.find(given, asked, progress=progress).exit_code)


def _add_to(record: Path | None, script: "Script", verdict: "Verdict") -> None:  # limits: three things meet
    if record is not None:
        runs = [dataclasses.asdict(run) for run in verdict.runs]
        fields = {"script": script.path, **verdict.as_fields(), **device_fields(script), "runs": runs}
        add_to_record(record, kind="verify", fields=fields)


class _Answer:
    """The answer: as JSON, or as text with a line for each run as it ends, then what follows from them."""

    def __init__(self, record: Path | None, *, is_json: bool, is_quiet: bool) -> None:
        self._record = record
        self._page = Page()
        self._num_runs = 0
        self._is_json = is_json
        self._is_quiet = is_quiet

    def find(self, script: "Script", asked: "VerifyOptions", *, progress: Progress) -> "Verdict":
        """Verify, print the answer, and return it.

        The script's output is shown in logs; on a terminal only the progress.
        """
        from truestep.verify import verify as verify_script

        open_record(self._record)  # after bad usage is refused
        verdict = verify_script(
            script,
            asked,
            show=None if self._is_quiet or sys.stderr.isatty() else sys.stderr,
            on_status=progress.status,
            on_step=progress.count,
            on_run=self.show_run,
            on_likely=self.show_likely,
        )
        if self._is_json:
            print(json.dumps({**verdict.as_fields(), **device_fields(script)}, indent=2))
        else:
            self.show(verdict)
            self._page.show_device(script)
        _add_to(self._record, script, verdict)
        return verdict

    def show_likely(self, found: "Difference") -> None:
        """Print a cause that experiments have yet to prove."""
        if not self._is_json:
            where = f"{line_name(found.file, found.line)}: " if found.file is not None else ""
            self._page.print(("likely", "bold"), f" {where}{found.cause} (proof follows)")

    def show_run(self, run: "RunSummary") -> None:
        """Print one line for a run that is over."""
        if self._is_json:
            return
        self._num_runs += 1
        text = f"  {run.divergence}" if run.divergence else ""
        steps = f"{run.num_steps} step{'s' if run.num_steps != 1 else ''}"
        line = f"run {self._num_runs}  {run.words:<20} {steps:<10} {run.digest}"
        self._page.print(line, (text, "yellow"))

    def show(self, verdict: "Verdict") -> None:
        """Print the answer."""
        from truestep.verify.compiled import compiled_lines
        from truestep.verify.describe import resume_lines, same_text

        if verdict.is_interrupted:
            self._page.print("")  # after the ^C that a terminal shows
        if verdict.same is None:
            self._page.print(("inconclusive", "bold yellow"), f": {verdict.reason}")
        elif verdict.same:
            self._page.print(("same", "bold green"), f" {same_text(verdict)}")
        elif verdict.first_difference is not None:
            self._show_difference(verdict.first_difference, is_rounding=verdict.is_rounding)
        for line in (*resume_lines(verdict), *compiled_lines(verdict.compiled)):
            self._page.print(line)
        if verdict.saved:
            self._page.print(f"fingerprint: {verdict.saved}")

    def _show_difference(self, found: "Difference", *, is_rounding: bool) -> None:
        from truestep.verify.describe import repair_lines, rows_of, source_line, when_text

        word = ("different by rounding", "bold yellow") if is_rounding else ("different", "bold red")
        self._page.print(word, f": {when_text(found)}, {found.what}")
        if found.file is not None:
            self._page.print("")
            line = found.line or 0
            self._page.show_place(found.file, line, source=source_line(found.file, line))
        self._page.show_rows(rows_of(found))
        for text in repair_lines(found):
            self._page.print(text)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Command, context_settings={"allow_interspersed_args": False})(verify)
