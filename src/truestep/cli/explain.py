"""`truestep explain`: what an expression does to tensors: shapes, strides, memory, broadcasting.

Owns the options and what is printed. What is told comes from `truestep.tensor`.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from truestep.cli._page import Format, Page


def explain(
    code: Annotated[str, typer.Argument(metavar="EXPR", help="Python, with torch, F, nn and np at hand.")],
    *,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it too: a .svg or .png file.")
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="How to print the answer.")] = Format.text,
) -> None:
    """Tell what an expression does: shapes, strides, what is a view and what a copy, broadcasting, autograd.

    EXPR is run: it is your own code. Several statements have ; between them.

        truestep explain "torch.arange(12).view(3, 4).T[:, ::2]"

        truestep explain "x = torch.arange(6); y = x.view(2, 3); y.t().reshape(-1)"

    The exit code is 0, or 2 if the expression fails.
    """
    from truestep.tensor import explain as find_out

    explanation = find_out(code)
    if format_ is Format.json:
        print(json.dumps(explanation.as_fields(), indent=2))
    else:
        Page().console.print(explanation)
    if picture is not None:
        explanation.picture().save(picture)


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(explain)
