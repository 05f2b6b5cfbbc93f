"""`truestep replay`: go back to one step of a run, compute it again, and look at everything in it.

Owns the options and what is printed. The replay is in `truestep.replay`.
"""

import json
import math
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from truestep.cli._help import Command
from truestep.cli._page import AsFormat, Format, Page, ScriptArguments, named_script, short
from truestep.cli._progress import Progress

if TYPE_CHECKING:
    from truestep.replay import Replayed

_EXAMPLE = "truestep replay --step 3000 runs/digits"
_INCONCLUSIVE = 2
_MOST_SHOWN = 8
_MOST_SAMPLES = 12

_Target = Annotated[
    str, typer.Argument(metavar="RUN", help="The folder of a truestep.Run, or a training script.")
]
_Step = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="The step, counted from 1.",
    ),
]


def replay(
    target: _Target,
    arguments: ScriptArguments = None,
    *,
    step: _Step,
    format_: AsFormat = Format.text,
) -> None:
    """Go back to one step of a run and look at everything in it.

    Starts from the newest snapshot before the step, or from the beginning if there is none, and computes up
    to the step with the same bits. Shows the samples of the batch by index, the loss of each sample, the
    first value that is not finite, and the lines that ran with their values in the step before and in the
    step, as truestep show does. Losses are compared with the run's record bit for bit.

    It runs in a copy of the working folder and changes nothing in the run's. Start it in the folder in which
    you started the training. A script that does not use truestep.Run is run from its beginning.

    Exit codes:
      0    replayed; for a run: with the same bits
      2    inconclusive: other bits, or the step was not reached; or bad usage
      3    a bug in truestep: please report it
      130  ended by Ctrl-C

    Examples:
      truestep replay --step 3000 runs/digits
      truestep replay --step 41 train.py --lr 0.1    the script gets --lr 0.1
      truestep replay --step 3000 --format json runs/digits
    """
    with Progress(f"replaying {Path(target).name}") as progress:
        from truestep.replay import replay_run, replay_script

        how = {"on_status": progress.status, "on_step": progress.count}
        if Path(target).is_dir():
            found = replay_run(Path(target), step, **how)  # type: ignore[arg-type]
        else:
            script = named_script(target, arguments, is_module=False, example=_EXAMPLE)
            found = replay_script(script, step, **how)  # type: ignore[arg-type]
    if format_ is Format.json:
        print(json.dumps(found.as_fields(), indent=2))
    else:
        _Answer(found).show()
    raise typer.Exit(_INCONCLUSIVE if found.is_same is False else 0)


class _Answer:
    def __init__(self, found: "Replayed") -> None:
        self._found = found
        self._page = Page()

    def show(self) -> None:
        """Print all of it."""
        found, page = self._found, self._page
        origin = f"the snapshot of step {found.begun_at}" if found.begun_at else "the beginning"
        page.print((f"step {found.step}", "bold"), f" of {short(found.script.path)}, replayed from {origin}")
        self._show_bits()
        if found.loss is not None:
            usual = (
                f", median of the {len(found.losses_before)} steps before: {median(found.losses_before):.4g}"
            )
            page.show_rows({"loss": f"{_number(found.loss)}{usual if found.losses_before else ''}"})
        page.show_rows({"error": (found.error or "").partition("\n")[0]})
        self._show_samples()
        self._show_lines()

    def _show_bits(self) -> None:
        found = self._found
        if found.is_same is None:
            return
        if found.is_same:
            words = f": {found.num_compared} losses are bit-for-bit those of the record"
            self._page.print(("same", "bold green"), words)
        else:
            words = f": the loss of step {found.first_different} is not the one in the record"
            self._page.print(("inconclusive", "bold yellow"), words)

    def _show_samples(self) -> None:
        found = self._found
        if not found.samples:
            return
        rows = list(zip(found.samples, found.sample_losses, strict=False))
        if rows:
            worst = sorted(rows, key=lambda row: -row[1] if math.isfinite(row[1]) else -math.inf)
            shown = ", ".join(f"{index} ({_number(loss)})" for index, loss in worst[:_MOST_SHOWN])
            self._page.show_rows({"batch": f"{len(rows)} samples; highest loss: {shown}"})
        else:
            shown = ", ".join(map(str, found.samples[:_MOST_SAMPLES]))
            more = ", ..." if len(found.samples) > _MOST_SAMPLES else ""
            self._page.show_rows({"batch": f"{len(found.samples)} samples, by index: {shown}{more}"})

    def _show_lines(self) -> None:
        from truestep.show.text import Selection, render, short_path

        listing, page = self._found.listing, self._page
        nonfinite = listing.first_nonfinite
        if nonfinite is not None:
            place = f"{short_path(nonfinite.file)}:{nonfinite.line}"
            page.print(("first value that is not finite", "bold"), f": {place} {nonfinite.value.label}")
        page.print(("values in the step before → in the step", "bold"))
        for parts in render(listing, selection=Selection(ran=True), width=page.width):
            page.print(*parts)


def _number(value: float | str) -> str:
    return f"{float(value):.4g}"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Command, context_settings={"allow_interspersed_args": False})(replay)
