"""The command line: one file per command, listed here.

Owns what all commands share: help, version, exit codes. Imports no torch; a command does so when it runs.
"""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

import truestep
from truestep.cli import (
    _help,
    attach,
    check,
    doctor,
    explain,
    export,
    mcp,
    replay,
    report,
    rule,
    run,
    schema,
    show,
    tune,
    verify,
    watch,
)
from truestep.errors import TruestepError

COMMANDS: tuple[Callable[[typer.Typer], None], ...] = (
    check.add_to,
    show.add_to,
    rule.add_to,
    verify.add_to,
    tune.add_to,
    replay.add_to,
    run.add_to,
    attach.add_to,
    report.add_to,
    watch.add_to,
    export.add_to,
    explain.add_to,
    doctor.add_to,
    schema.add_to,
    mcp.add_to,
)
"""The function `add_to(app)` of each file beside this one, in the order in which help lists them."""

BAD_USAGE, OWN_FAULT = 2, 3


def _version_line() -> str:
    import platform
    from importlib import metadata  # a fifth of the time of --help

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
    """Find the bugs in your PyTorch training script by running it.

    The commands take any training script: plain PyTorch, Lightning, Accelerate, Hugging Face Trainer. You do
    not change it.

    There is also a library: with `import truestep` you keep your own loop, and a killed run
    resumes from its last snapshot with the same bits.

    Exit codes:
      0    fine
      1    something was found: a bug, a difference
      2    inconclusive, or the command was used incorrectly
      3    a bug in truestep: please report it
      130  ended by Ctrl-C
    `run` exits with the exit code of the script.

    Examples:
      truestep check train.py
      truestep check --help        the help of one command
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def build_app() -> typer.Typer:
    """Return the application with every command of `COMMANDS` added."""
    app = typer.Typer(
        name="truestep",
        cls=_help.Group,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,  # it would replace sys.excepthook under the user's own script
    )
    app.callback(invoke_without_command=True)(_start)
    for add_to in COMMANDS:
        add_to(app)
    return app


def main() -> None:
    """Run the command line; a mistake of the user ends in one message and exit code 2.

    A mistake of ours shows where it happened and has an exit code of its own: 1 would look like a finding.
    """
    try:
        build_app()()
    except TruestepError as error:
        typer.echo(f"truestep: {error}", err=True)
        sys.exit(BAD_USAGE)
    except Exception:  # noqa: BLE001 - nothing is hidden: all of it is shown
        import traceback

        traceback.print_exc()
        typer.echo("truestep: this is a bug in truestep. Please report it with the lines above", err=True)
        sys.exit(OWN_FAULT)
