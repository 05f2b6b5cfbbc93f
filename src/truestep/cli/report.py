"""`truestep report`: a run's record as one HTML file.

Owns the options. What is in the page is `truestep.report`'s.
"""

from pathlib import Path
from typing import Annotated

import typer

from truestep.cli._help import Command
from truestep.cli._page import short


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write it.", show_default="RUN/report.html"),
    ] = None,
) -> None:
    """Write a report of a run as one HTML file.

    The page shows curves with kills, resumes and changes of the number of processes, speed, memory,
    evaluations, answers of check and verify, the recipe and the machine.

    The page opens from disk and needs no network.

    Exit codes:
      0  the page was written
      2  there is no record, or the page cannot be written
      3  a bug in truestep: please report it

    Examples:
      truestep report runs/digits
      truestep report runs/digits --out digits.html
    """
    from truestep.report.compose import write_report
    from truestep.report.numerals import size

    path = write_report(run, out=out)
    print(f"{short(str(path))} ({size(path.stat().st_size)})")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Command)(report)
