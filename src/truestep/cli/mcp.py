"""`truestep mcp`: check, verify, tune and rule as tools of the Model Context Protocol, for coding agents.

Owns the command. The tools are in `_tools`.
"""

import typer

from truestep.cli._help import Command
from truestep.errors import UsageError


def mcp() -> None:
    """Serve check, verify, tune and rule to a coding agent.

    Speaks the Model Context Protocol on standard input and output, until the client closes them. The tools
    run the scripts that the client names, with your rights. Needs pip install 'truestep[mcp]'

    Exit codes:
      0  the client has left
      2  the package mcp is missing
      3  a bug in truestep: please report it

    Examples:
      truestep mcp
    """
    try:
        from truestep.cli._tools import build_server
    except ImportError as error:
        raise UsageError("truestep mcp needs mcp. Install it: pip install 'truestep[mcp]'") from error
    build_server().run("stdio")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Command)(mcp)
