"""`truestep report`: a run's record as one HTML file.

Owns the options. What is in the page is `truestep.report`'s.
"""

from pathlib import Path
from typing import Annotated

import typer

from truestep.cli._page import short


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="The folder of a run; several are compared.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write it.", show_default="RUN/report.html"),
    ] = None,
) -> None:
    """Write the record of RUN as one HTML file that opens from disk, with no network.

    Curves with kills, resumes and changes of the number of processes in them, speed, memory, evaluations,
    what check, verify and tune said, the recipe and the machine. Several runs are drawn over each other, with
    what differs between them. Needs plotly: pip install 'truestep[report]'
    """
    from truestep.report.compose import write_report

    path = write_report(runs, out=out)
    print(f"{short(str(path))} ({path.stat().st_size / 1e6:.1f} MB)")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)
