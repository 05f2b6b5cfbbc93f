"""The command line: one file per command, listed here.

Owns what all commands share: help, version, exit codes. Imports no torch; a command does so when it runs.
"""

import platform
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Annotated

import typer

import truestep
from truestep.cli import check, doctor, explain, export, report, run, tune, verify, watch
from truestep.errors import TruestepError

COMMANDS: tuple[Callable[[typer.Typer], None], ...] = (
    doctor.add_to,
    check.add_to,
    verify.add_to,
    tune.add_to,
    run.add_to,
    report.add_to,
    watch.add_to,
    export.add_to,
    explain.add_to,
)
"""The function `add_to(app)` of each file beside this one, in the order in which help lists them."""

BAD_USAGE = 2


def _version_line() -> str:
    try:
        torch_version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch_version = "not installed"
    return f"truestep {truestep.__version__} (torch {torch_version}, Python {platform.python_version()})"


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(_version_line())
        raise typer.Exit


def _start(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the versions."),
    ] = False,
) -> None:
    """Make PyTorch training right, the same every time, and fast.

    truestep is a library: write `import truestep` in your training script and keep your own loop.
    The commands run such a script, or any other.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def build_app() -> typer.Typer:
    """Return the application with every command of `COMMANDS` added."""
    app = typer.Typer(
        name="truestep",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,  # it would replace sys.excepthook under the user's own script
    )
    app.callback(invoke_without_command=True)(_start)
    for add_to in COMMANDS:
        add_to(app)
    return app


def main() -> None:
    """Run the command line; a mistake of the user ends in one message and exit code 2."""
    try:
        build_app()()
    except TruestepError as error:
        typer.echo(f"truestep: {error}", err=True)
        sys.exit(BAD_USAGE)
