"""`truestep explain`: what an expression does to tensors: shapes, strides, memory, broadcasting.

Owns the options and what is printed. The content comes from `truestep.tensor`.
"""

import json
from typing import Annotated

import typer

from truestep.cli._help import Command
from truestep.cli._page import AsFormat, Format


def explain(
    code: Annotated[str, typer.Argument(metavar="EXPR", help="Python code, with torch, F, nn and np.")],
    *,
    format_: AsFormat = Format.text,
) -> None:
    """Show what a tensor expression views, copies and broadcasts.

    Shows each step with its shapes and memory, which axis is removed, and why an expression failed. EXPR is
    executed. Separate several statements with ;

    Exit codes:
      0  the expression was explained
      2  the expression failed, or bad usage
      3  a bug in truestep: please report it

    Examples:
      truestep explain "torch.arange(12).view(3, 4).T[:, ::2]"
      truestep explain "x = torch.arange(6); y = x.view(2, 3); y.t().reshape(-1)"
      truestep explain "torch.ones(3, 1) + torch.ones(4)"
    """
    from truestep.tensor import explain as find_out

    explanation = find_out(code)
    if format_ is Format.json:
        print(json.dumps(explanation.as_fields(), indent=2))
    else:
        print(explanation)


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(cls=Command)(explain)
