"""`truestep export`: a run's record in the files of other tools.

Owns the options. What is written is in `truestep.report.export`.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class To(StrEnum):
    """What to write."""

    csv = "csv"
    parquet = "parquet"
    tensorboard = "tensorboard"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    *,
    to: Annotated[To, typer.Option(help="What to write.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Where; if not given, into the run's folder: record.csv, record.parquet, tensorboard/.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on while the run does, until it is done (tensorboard).")
    ] = False,
) -> None:
    """Write losses, logged values and evaluations of a run for another tool.

    Each step is there once, also in a run that was killed and resumed. The run's folder is not changed
    beyond the file that is written.
    """
    from truestep.report.export import export as write

    path = write(run, to.value, out=out, follow=follow)
    typer.echo(f"truestep: wrote {path}")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export)
