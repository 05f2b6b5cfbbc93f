"""`truestep watch`: follow a run while it trains, in the terminal or in the browser.

Owns the options. Reading, drawing and serving are in `truestep.report.live`.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from truestep.cli._help import Command
from truestep.cli._page import Format
from truestep.errors import UsageError

if TYPE_CHECKING:
    from truestep.report.live import Live

_MAX_PORT = 65535


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    *,
    is_served: Annotated[
        bool, typer.Option("--serve", help="Show it in the browser, on this machine only.")
    ] = False,
    port: Annotated[int, typer.Option(metavar="N", help="The port for --serve; 0 picks a free one.")] = 0,
    format_: Annotated[
        Format,
        typer.Option("--format", metavar="text|json", help="json: print where the run stands, and exit."),
    ] = Format.text,
) -> None:
    """Show a run while it trains, in the terminal or the browser.

    Shows progress, curves, speed, processes and findings. The run may be killed, resumed, or continued on
    another number of processes: the view follows it. It only reads the run's folder. q or Ctrl-C ends the
    view, not the run.

    With --serve it prints an address on 127.0.0.1 that contains a secret. Nothing is served without it.

    Exit codes:
      0  you ended the view, or it was printed
      2  bad usage
      3  a bug in truestep: please report it

    Examples:
      truestep watch runs/digits
      truestep watch --serve --port 8000 runs/digits
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
    if not 0 <= port <= _MAX_PORT:
        raise UsageError(f"--port must be from 0 to {_MAX_PORT}, got {port}.")
    from truestep.report.live import Live, Server, watch

    live = Live(run)
    live.poll()  # a record that cannot be read is reported here, not in the browser
    if format_ is Format.json:
        typer.echo(json.dumps(_fields(live), indent=2))
    elif is_served:
        with Server(live, port=port) as server:
            typer.echo(f"truestep: {server.address}  (Ctrl-C ends the view, not the run)")
            server.serve()
    else:
        watch(live)


def _fields(live: "Live") -> dict[str, Any]:
    """Return where the run stands, with the last value of each curve."""
    from truestep.report.live.fields import as_fields

    fields = as_fields(live)
    points = ("steps", "values", "course")
    fields["curves"] = [
        {name: value for name, value in curve.items() if name not in points} for curve in fields["curves"]
    ]
    return fields


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Command)(watch)
