"""`truestep show`: the script, with its values beside each line.

Owns the options and what is printed. The run and the listing are in `truestep.show`.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from truestep.cli._help import Command
from truestep.cli._page import (
    AsFormat,
    DeviceName,
    Format,
    IsModule,
    Page,
    ScriptArguments,
    ScriptName,
    StepLimit,
    answer_file,
    answer_option,
    device_fields,
    named_script,
    short,
    starting_option,
)
from truestep.cli._progress import Progress
from truestep.errors import UsageError

if TYPE_CHECKING:
    from truestep.show import Listing
    from truestep.show.text import Selection
    from truestep.watch import Script

_EXAMPLE = "truestep show --steps 100 train.py --lr 0.1"
_INCONCLUSIVE = 2

_Also = Annotated[
    str | None, starting_option(metavar="PACKAGES", help="Show the code of these packages too.")
]
_Lines = Annotated[str | None, answer_option(metavar="A:B", help="Print these lines of SCRIPT.")]
_Function = Annotated[str | None, answer_option(metavar="NAME", help="Print this function.")]
_All = Annotated[bool, answer_option("--all", help="Print every line.")]
_Why = Annotated[
    int | None,
    answer_option(metavar="LINE", help="Print the lines that this line's values come from and go to."),
]
_Against = Annotated[
    str | None,
    starting_option(
        metavar="COMMIT|SCRIPT", help="Run this too, and mark the lines and values that differ from it."
    ),
]
_AgainstArgs = Annotated[
    str | None,
    starting_option(metavar="TEXT", help="Run it too with these arguments, and mark what differs."),
]
_Output = Annotated[Path | None, answer_file(help="Write the whole listing to this HTML file.")]
_Quiet = Annotated[bool, answer_option("-q", "--quiet", help="Discard what the script prints.")]


def show(  # noqa: PLR0913  # limits: an argument is an option of the command
    script: ScriptName,
    arguments: ScriptArguments = None,
    *,
    steps: StepLimit = None,
    device: DeviceName = None,
    is_module: IsModule = False,
    also: _Also = None,
    against: _Against = None,
    against_args: _AgainstArgs = None,
    lines: _Lines = None,
    function: _Function = None,
    everything: _All = False,
    why: _Why = None,
    output: _Output = None,
    format_: AsFormat = Format.text,
    quiet: _Quiet = False,
) -> None:
    """Run a training script and show what each line computed.

    Beside each line stand the values that it named: type, shape, range and mean at the first call and at the
    last, and what is odd about them: not finite, the same at each call, never reaches a loss. At a backward
    pass stand gradient norms, at an optimizer's step the size of the update.

    The script runs unmodified in the working folder, once. Lines are followed in the first 16 steps and in
    short windows later. Without --lines, --function, --all or --why, the training step and the functions
    that it calls are printed. --output has all of it.

    With --against or --against-args, two runs stand beside each other, each in a copy of the working folder.
    Lines are aligned by their text. What differs is printed, with the value that differed first at the end.

    Exit codes:
      0    shown
      2    inconclusive: the script failed before a line was followed; or bad usage
      3    a bug in truestep: please report it
      130  ended by Ctrl-C before anything was known

    Examples:
      truestep show train.py
      truestep show --output show.html --steps 100 train.py --lr 0.1
      truestep show --function forward train.py
      truestep show --why 35 train.py
      truestep show --against HEAD~1 train.py
      truestep show --format json train.py
    """
    from truestep.show.text import Selection

    given = named_script(script, arguments, is_module=is_module, device=device, example=_EXAMPLE)
    selection = Selection(lines=_bounds(lines), function=function, everything=everything)
    others = (against, against_args)
    listing = _run(given, steps=steps, also=also, against=others, format_=format_, is_quiet=quiet)
    if format_ is Format.json:
        print(json.dumps({"script": given.path, **device_fields(given), **listing.as_fields()}, indent=2))
    else:
        _print(listing, selection, why=why)
        Page().show_device(given)
    if output is not None:
        _write(listing, output, title=given.name)
    is_followed = listing.files and (listing.num_steps or listing.ended != "withdrawn")
    raise typer.Exit(0 if is_followed else _INCONCLUSIVE)


def _write(listing: "Listing", output: Path, *, title: str) -> None:
    from truestep.show.page import write_page

    write_page(listing, output, title=title)
    print(f"truestep: wrote {short(str(output.absolute()))}", file=sys.stderr)


def _bounds(words: str | None) -> tuple[int, int] | None:
    if words is None:
        return None
    first, _, last = words.partition(":")
    try:
        bounds = (int(first), int(last or first))
    except ValueError:
        bounds = (0, 0)
    if not 1 <= bounds[0] <= bounds[1]:
        raise UsageError(f"--lines needs a first and a last line, got {words}. Pass --lines 60:90.")
    return bounds


def _run(
    given: "Script",
    *,
    steps: int | None,
    also: str | None,
    against: tuple[str | None, str | None],
    format_: Format,
    is_quiet: bool,
) -> "Listing":
    with Progress(f"starting {given.name}", is_quiet=is_quiet) as progress:
        from truestep.show import ShowOptions, find_other, show_both, show_script

        quiet = subprocess.DEVNULL if is_quiet else None
        options = ShowOptions(
            steps=steps,
            also=tuple(word.strip() for word in (also or "").split(",") if word.strip()),
            stdout=quiet if is_quiet or format_ is Format.text else sys.stderr,
            stderr=quiet,
        )
        progress.status(f"running {given.name}")
        if against == (None, None):
            return show_script(given, options=options, on_step=progress.count)
        other = find_other(given, word=against[0], arguments=against[1])
        return show_both(given, other, options=options, on_step=progress.count)


def _print(listing: "Listing", selection: "Selection", *, why: int | None) -> None:
    from truestep.show.text import compared_words, render, require_shown
    from truestep.show.why import explain_line
    from truestep.watch.evidence.phases import phase_words

    page = Page()
    if not listing.files:
        reason = listing.error or "; ".join(listing.troubles) or "torch was not imported"
        page.print(("inconclusive", "bold yellow"), f": no line was followed: {reason}")
        return
    require_shown(listing, selection)
    width = page.width
    lines = (
        render(listing, selection=selection, width=width)
        if why is None
        else explain_line(listing, why, width=width)
    )
    if listing.phases:
        page.print((f"time of a step: {phase_words(listing.phases)}", "dim"))
    for parts in lines:
        page.print(*parts)
    page.print((_summary(listing), "dim"))
    if listing.against is not None:
        page.print(compared_words(listing))


def _summary(listing: "Listing") -> str:
    reasons = {"raised": f" The script failed: {listing.error}.", "withdrawn": f" {listing.error}"}
    failed = reasons.get(listing.ended or "", "")
    steps = f"{listing.num_steps} step{'s' * (listing.num_steps != 1)}"
    return f"\nfirst call → last call, in {steps}.{failed} Every line: --all, or --output show.html"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Command, context_settings={"allow_interspersed_args": False})(show)
