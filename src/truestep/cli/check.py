"""`truestep check`: what is wrong with this training script, seen while it runs.

Owns the options. The run is in `truestep.check`, what the answer looks like in `_answer`.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from truestep.cli._answer import (
    Answer,
    Format,
    diff_lines,
    fixed_lines,
    json_line,
    make_patch,
    place_of,
    show_finding,
    untested_text,
)
from truestep.cli._help import Command
from truestep.cli._page import (
    DeviceName,
    IsModule,
    IsQuiet,
    Page,
    RecordFolder,
    ScriptArguments,
    ScriptName,
    StepLimit,
    add_to_record,
    answer_file,
    answer_option,
    named_script,
    open_record,
    short,
    starting_option,
)
from truestep.cli._progress import Progress
from truestep.errors import UsageError, printable

if TYPE_CHECKING:
    from truestep.check import CheckOptions, Listener, Result, RuleFinding, Settings
    from truestep.check.early import Key, OnFinding
    from truestep.rules.evidence import Evidence
    from truestep.show import Listing
    from truestep.watch import Script

_FOUND, _INCONCLUSIVE, _OWN_FAULT, _ENDED = 1, 2, 3, 130
_EXAMPLE = "truestep check --steps 100 train.py --lr 0.1"
_rules_option: Any = partial(typer.Option, rich_help_panel="Rules")
_MAX_TAIL_BYTES, _MAX_TAIL_LINES = 20_000, 20


_Timeout = Annotated[
    float | None,
    starting_option(metavar="SECONDS", help="End the script after this time and report the findings so far."),
]
_Processes = Annotated[int | None, starting_option(metavar="N", help="Start N processes through torchrun.")]
_Select = Annotated[
    str | None,
    _rules_option(
        metavar="RULES", help="Run only these: codes, names or families, as in LOOP01,stale-gradients,PAR."
    ),
]
_Ignore = Annotated[str | None, _rules_option(metavar="RULES", help="Do not run these.")]
_Rules = Annotated[Path | None, _rules_option(metavar="FOLDER", help="Also run the rules in this folder.")]
_Fix = Annotated[
    bool,
    answer_option(
        "--fix",
        help="Edit SCRIPT, and files that it uses under its folder, to fix errors and warnings, and check "
        "again. An edit that does not fix its finding or makes the script worse is withdrawn.",
    ),
]
_FixAll = Annotated[bool, answer_option("--fix-all", help="As --fix, for remarks too.")]
_AsFormat = Annotated[
    Format,
    answer_option(
        "--format",
        metavar="FORMAT",
        help="How to print the answer: text, json, jsonl (a line for each finding as it happens), sarif, "
        "github, or diff, the edits that are certain without a test, as a patch.",
    ),
]
_Output = Annotated[
    Path | None,
    answer_file(help="Write the answer in --format to this file, and print it as text."),
]
_Show = Annotated[
    Path | None,
    answer_file(help="Write the script, with its values and these findings, to this HTML file."),
]
_Verbose = Annotated[
    bool,
    answer_option(
        "-v",
        "--verbose",
        help="Also print remarks that are often a matter of taste, and the rules that did not apply.",
    ),
]
_ExitZero = Annotated[bool, answer_option("--exit-zero", help="Exit with 0 instead of 1 on findings.")]


def check(  # noqa: PLR0913  # limits: an argument is an option of the command
    script: ScriptName,
    arguments: ScriptArguments = None,
    *,
    steps: StepLimit = None,
    timeout: _Timeout = None,
    processes: _Processes = None,
    device: DeviceName = None,
    is_module: IsModule = False,
    select: _Select = None,
    ignore: _Ignore = None,
    rules: _Rules = None,
    fix: _Fix = False,
    fix_all: _FixAll = False,
    record: RecordFolder = None,
    format_: _AsFormat = Format.text,
    output: _Output = None,
    show: _Show = None,
    quiet: IsQuiet = False,
    verbose: _Verbose = False,
    exit_zero: _ExitZero = False,
) -> None:
    """Run a training script and report the bugs in it.

    The script runs unmodified in the working folder. Each finding has the line, the evidence, the fix, and
    the cost where it was measured. Options of truestep come before SCRIPT.

    A finding is printed once it is certain, or at the end. Ctrl-C and SIGTERM end the script and report what
    was found. If --format is not text, the script's own output goes to standard error.

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
      truestep check --format sarif --output check.sarif train.py
    """
    given = named_script(script, arguments, is_module=is_module, device=device, example=_EXAMPLE)
    options = _options(steps=steps, processes=processes, timeout=timeout)
    to = _To(format_, output, show, record)
    with Progress(f"starting {given.name}", is_quiet=quiet) as progress:
        settings = _settings(select=select, ignore=ignore, rules=rules, verbose=verbose)
        request = _Request(given, settings, options, progress, to, is_quiet=quiet)
        answer = request.fix(has_remarks=fix_all) if fix or fix_all else request.examine()
    request.finish(answer)
    raise typer.Exit(_exit_code(answer.result, found=0 if exit_zero else _FOUND))


def _settings(*, select: str | None, ignore: str | None, rules: Path | None, verbose: bool) -> "Settings":
    from truestep.check import read_settings

    settings = read_settings(Path.cwd()).updated(
        select=_names(select), ignore=_names(ignore), rules=(rules,) if rules else ()
    )
    return replace(settings, is_verbose=verbose)


def _options(*, steps: int | None, processes: int | None, timeout: float | None) -> "CheckOptions":
    from truestep.check import CheckOptions

    if processes is not None and processes < 1:
        raise UsageError(f"--processes must be at least 1, got {processes}.")
    if timeout is not None and not timeout > 0:
        raise UsageError(f"--timeout must be more than 0 seconds, got {timeout:g}.")
    return CheckOptions(steps=steps, processes=processes, timeout_s=timeout)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


class _To(NamedTuple):
    """Where the answer goes."""

    format: Format
    output: Path | None
    page: Path | None
    record: Path | None


@dataclass(frozen=True)
class _Request:
    """What is asked, how the answer is shown, and where it goes."""

    script: "Script"
    settings: "Settings"
    options: "CheckOptions"
    progress: Progress
    to: _To
    _: KW_ONLY
    is_quiet: bool
    listings: list["Listing"] = field(default_factory=list)
    """What the script's lines computed, if a page of it was asked for."""

    @property
    def is_text(self) -> bool:
        """Whether standard output gets the answer as text, beside what the script prints."""
        return self.to.format is Format.text or self.to.output is not None

    def examine(self) -> Answer:
        """Run the script and judge it; return what is known, and what could be fixed.

        Findings are printed as they happen.
        """
        from truestep.check import proposed
        from truestep.check.early import key_of

        above: set[Key] = set()

        def on_finding(reported: "RuleFinding", evidence: "Evidence") -> None:
            above.add(key_of(reported))
            if self.is_text:
                show_finding(reported, evidence, page=Page())
            elif self.to.format is Format.jsonl:
                print(json_line("finding", reported.as_fields()), end="", flush=True)
            self.progress.found(len(above))

        result = self._examine(on_finding)
        edits = proposed(result)
        if edits.untested and self.to.format is Format.diff:
            _print_status(f"truestep: {untested_text(edits.untested)}")
        answer = self._answer(result, patch=make_patch(edits.changed, result))
        return replace(answer, proposed=edits, above=above)

    def fix(self, *, has_remarks: bool) -> Answer:
        """Examine, change the user's files where that is safe, and return what is known of them then."""
        from truestep.check import apply_fixes

        if self.to.page is not None:
            raise UsageError(
                "--show is for one run, and --fix makes several. Run check --show after the fix."
            )
        result = self._examine()

        def on_attempt(findings: "Sequence[RuleFinding]") -> None:
            names = ", ".join(f"{item.rule.meta.code} at {place_of(item)}" for item in findings)
            _print_status(f"truestep: testing the edits for {names}: running the script again")

        try:
            fixed = apply_fixes(result, self._examine, has_remarks=has_remarks, on_attempt=on_attempt)
        except UsageError:
            self.show(self._answer(result, patch=""))
            raise
        _print_status(*diff_lines(fixed.changed, result), *fixed_lines(fixed))
        return self._answer(fixed.result, patch=make_patch(fixed.changed, result))

    def show(self, answer: Answer) -> None:
        """Print the answer: as text, if its other form goes to a file."""
        if self.is_text:
            answer.show(Page())
        else:
            print(answer.render(self.to.format), end="")

    def finish(self, answer: Answer) -> None:
        """Print the answer, then write it where it was asked for."""
        self.show(answer)
        if self.to.output is not None:
            _write_output(self.to.output, replace(answer, above=()).render(self.to.format))
        if self.to.page is not None:
            self._write_page(self.to.page, answer.result)
        if self.to.record is not None:
            add_to_record(
                self.to.record, kind="check", fields={"script": self.script.path, **answer.as_fields()}
            )

    def _write_page(self, path: Path, result: "Result") -> None:
        from truestep.show.page import write_page

        listing = self.listings[-1]
        listing.pin([reported.as_fields() for reported in result.findings])
        write_page(listing, path, title=self.script.name)
        _print_status(f"truestep: wrote {short(str(path.absolute()))}")

    def _answer(self, result: "Result", *, patch: str) -> Answer:
        return Answer(script=self.script, result=result, patch=patch, is_verbose=self.settings.is_verbose)

    def _examine(self, on_finding: "OnFinding | None" = None) -> "Result":
        from truestep.check import Listener

        listener = Listener(
            on_status=self.progress.status, on_step=self.progress.count, on_finding=on_finding
        )
        if self.is_quiet:
            with tempfile.TemporaryFile() as printed:
                result = self._run(listener, stdout=subprocess.DEVNULL, stderr=printed)
                if result.inconclusive:
                    _print_status(*_last_lines(printed))
                return result
        return self._run(listener, stdout=None if self.is_text else sys.stderr, stderr=None)

    def _run(
        self, listener: "Listener", *, stdout: IO[str] | int | None, stderr: IO[bytes] | None
    ) -> "Result":
        from truestep.check import examine

        options = replace(self.options, stdout=stdout, stderr=stderr)
        if self.to.page is not None:
            from truestep.show import read_listing, recording

            options = replace(
                options,
                settings=(recording(),),
                on_evidence=lambda folder: self.listings.append(read_listing(folder)),
            )
        return examine(
            self.script,
            self.settings,
            options=options,
            before_start=self._refuse_unwritable,
            listener=listener,
        )

    def _refuse_unwritable(self) -> None:
        """Refuse what cannot be written before the script runs, when nothing else can be refused."""
        for option, path in (("--output", self.to.output), ("--show", self.to.page)):
            if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
                raise UsageError(
                    f"{option} needs a file in an existing folder, got {path}. Create the folder, or name "
                    f"another file."
                )
        open_record(self.to.record)


def _last_lines(file: IO[bytes]) -> list[str]:
    """Return the end of what a script printed: there is its error."""
    file.seek(0, 2)
    file.seek(max(0, file.tell() - _MAX_TAIL_BYTES))
    lines = file.read().decode(errors="replace").splitlines()
    return [printable(line, keep="\t") for line in lines[-_MAX_TAIL_LINES:]]


def _write_output(path: Path, text: str) -> None:
    from truestep.base.runfiles import replacing

    try:
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}). Name another file.") from error


def _print_status(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _exit_code(result: "Result", *, found: int) -> int:
    from truestep.check.examine import INTERRUPTED

    is_ended = result.code in INTERRUPTED or result.timed_out_s is not None
    if result.code and not is_ended:
        return _INCONCLUSIVE
    if result.has_mistakes:
        return found
    if result.evaluation.failed or result.switched_off:
        return _OWN_FAULT
    if result.code and result.timed_out_s is None:
        return _ENDED
    return _INCONCLUSIVE if result.inconclusive else 0


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    settings = {"allow_interspersed_args": False, "ignore_unknown_options": False}
    app.command("check", cls=Command, context_settings=settings)(check)
