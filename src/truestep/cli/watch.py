"""`truestep watch`: follow a run while it trains, in the terminal.

Owns the options. Reading and drawing are in `truestep.report.live`.
"""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from truestep.cli._help import Command
from truestep.cli._page import Format
from truestep.errors import UsageError


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    *,
    format_: Annotated[
        Format,
        typer.Option("--format", metavar="text|json", help="json: print where the run stands, and exit."),
    ] = Format.text,
) -> None:
    """Show a run while it trains, in the terminal.

    Shows progress, the last values and their course, speed, processes and findings. The run may be killed,
    resumed, or continued on another number of processes: the view follows it. It only reads the run's
    folder. Ctrl-C ends the view, not the run.

    Exit codes:
      0  you ended the view, or it was printed
      2  bad usage
      3  a bug in truestep: please report it

    Examples:
      truestep watch runs/digits
      truestep watch --format json runs/digits
    """
    if not os.path.exists(run):  # noqa: PTH110 - Path raises for long names
        raise UsageError(
            f"{run} does not exist. Start the run first, or pass its folder: truestep watch runs/digits"
        )
    if not os.path.isdir(run):  # noqa: PTH112 - as above
        raise UsageError(
            f"{run} is a file. Pass the folder that holds record.jsonl: truestep watch runs/digits"
        )
    from truestep.report.live import Live, watch
    from truestep.report.live.fields import as_fields

    live = Live(run)
    live.poll()
    if format_ is Format.json:
        typer.echo(json.dumps(as_fields(live), indent=2))
    else:
        watch(live)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Command)(watch)
