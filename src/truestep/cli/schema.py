"""`truestep schema`: the JSON schema of a command's answer.

Owns where the schemas are: a file for each command in `schemas/`. Tests compare them with real answers.
"""

from pathlib import Path
from typing import Annotated

import typer

from truestep.cli._help import Command
from truestep.errors import UsageError

_FOLDER = Path(__file__).parent / "schemas"


def schema(
    command: Annotated[
        str | None,
        typer.Argument(metavar="COMMAND", show_default=False, help="A command that has --format json."),
    ] = None,
) -> None:
    """Print the JSON schema of what a command prints with --format json.

    For programs and coding agents that read the answers. Without COMMAND, the commands that have one are
    listed. Fields are added over time and never removed or given another meaning within a major version.

    Exit codes:
      0  printed
      2  there is no such schema
      3  a bug in truestep: please report it

    Examples:
      truestep schema
      truestep schema check
    """
    known = sorted(path.stem for path in _FOLDER.glob("*.json"))
    if command is None:
        typer.echo("\n".join(known))
    elif command in known:
        typer.echo((_FOLDER / f"{command}.json").read_text(encoding="utf-8"), nl=False)
    else:
        raise UsageError(f"{command!r} has no JSON schema. These have one: {', '.join(known)}.")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Command)(schema)
