"""`truestep export`: a run's record in the files of other tools.

Owns the options. What is written is in `truestep.report.export`.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from truestep.cli._help import Command


class To(StrEnum):
    """What to write."""

    csv = "csv"
    tensorboard = "tensorboard"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    *,
    to: Annotated[To, typer.Option(metavar="csv|tensorboard", help="What to write. Needed.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Where to write it.",
            show_default="record.csv or tensorboard/ in the run's folder",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep writing until the run is done; for tensorboard.")
    ] = False,
) -> None:
    """Write a run's numbers as CSV or TensorBoard files.

    Losses, logged values and evaluations. Each step is there once, also in a run that was killed and resumed.
    Nothing in the run's folder is changed but the file that is written. TensorBoard needs
    pip install 'truestep[tensorboard]'.

    Exit codes:
      0  the file was written
      2  there is no record, or the file cannot be written
      3  a bug in truestep: please report it

    Examples:
      truestep export runs/digits --to csv
      truestep export runs/digits --to tensorboard --follow
    """
    from truestep.report.export import export as write

    path = write(run, to.value, out=out, follow=follow)
    typer.echo(f"truestep: wrote {path}")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Command)(export)
