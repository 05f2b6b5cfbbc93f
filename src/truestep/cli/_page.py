"""What commands that run a script have in common: its name on the command line, and lines on a terminal.

Owns how a place in a file, named rows and severities look, and where an answer is recorded. What is said is
each command's own.
"""

import textwrap
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from truestep.errors import UsageError, printable

if TYPE_CHECKING:
    from truestep.watch import Script

STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}
"""By severity."""
_LOG_WIDTH = 100
_WIDTH = 7


class Format(StrEnum):
    """How the answer is printed."""

    text = "text"
    json = "json"


class Device(StrEnum):
    """Where the script computes what it asks CUDA for."""

    cpu = "cpu"


REDIRECTED = "cuda is redirected to the CPU: speed, memory and device placement on a GPU are not checked"


def named_script(
    script: str,
    arguments: Sequence[str] | None,
    *,
    is_module: bool,
    example: str,
    device: Device | None = None,
) -> "Script":
    """Return the script that a command was given, with its own arguments; a file has to be there."""
    if not is_module:
        require_script(script, example=example)
    from truestep.watch import Script

    return Script(
        path=script,
        arguments=tuple(arguments or ()),
        is_module=is_module,
        device=None if device is None else "cpu",
    )


def require_script(script: str | Path, *, example: str) -> None:
    """Refuse anything that is not a file, with an example of how to call the command."""
    from truestep.base import plainfile

    if not plainfile.is_there(script):
        raise UsageError(
            f"{script} is not a file. Options of truestep come before the script, the script's own after it: "
            f"{example}"
        )


def open_record(folder: Path | None) -> None:
    """Refuse a folder that cannot be written before the script is run for it."""
    from truestep.record import Record

    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            Record(folder / "record.jsonl").close()
        except OSError as error:
            raise UsageError(
                f"--record needs a writable folder, got {folder} ({error.strerror}). Pass another one."
            ) from error


answer_option: Any = partial(typer.Option, rich_help_panel="Output")
answer_file: Any = partial(answer_option, metavar="FILE")
starting_option: Any = partial(typer.Option, rich_help_panel="How the script runs")

ScriptName = Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script.")]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGS", show_default=False, help="Everything after SCRIPT is passed to it."),
]
IsModule = Annotated[bool, starting_option("-m", help="SCRIPT is a module name, as for python -m.")]
DeviceName = Annotated[
    Device | None,
    starting_option(
        metavar="cpu", help="Run a script for CUDA on the CPU: what it asks of CUDA is redirected."
    ),
]
StepLimit = Annotated[
    int | None, starting_option(metavar="N", help="Stop the script after N optimizer steps.")
]
IsQuiet = Annotated[
    bool, answer_option("-q", "--quiet", help="Discard what the script prints, unless it fails.")
]
RecordFolder = Annotated[
    Path | None,
    answer_option(metavar="FOLDER", help="Add the answer to the record in this folder, for truestep report."),
]
"""The option `--record` of commands whose answers `truestep report` shows."""


AsFormat = Annotated[Format, answer_option("--format", metavar="text|json", help="How to print the answer.")]


def device_fields(script: "Script") -> dict[str, str]:
    """Return what JSON has of it that CUDA is redirected."""
    return {} if script.device is None else {"device": script.device, "redirected": REDIRECTED}


def add_to_record(folder: Path, *, kind: str, fields: Mapping[str, Any]) -> None:
    """Append a command's answer to the record in a folder."""
    from truestep.record import Record

    record = Record(folder / "record.jsonl")
    record.write(kind, **fields)
    record.close()
    if record.num_lost:
        raise UsageError(f"the answer could not be written to {folder / 'record.jsonl'}. Is the disk full?")


def short(file: str) -> str:
    """Return a path as seen from the working folder, if it lies in it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def line_name(file: str, line: int | None) -> str:
    """Return file and line; in a notebook the cell and the line in it."""
    from truestep.base import cells

    return cells.line_name(file, line, shown=short(file))


class Page:
    """Lines on standard output, with colours if it is a terminal; or in a file, without."""

    def __init__(self, file: IO[str] | None = None) -> None:
        from rich.console import Console

        colours: Literal["auto"] | None = "auto" if file is None else None
        self.console = Console(file=file, color_system=colours, highlight=False, soft_wrap=True)

    def print(self, *parts: str | tuple[str, str]) -> None:
        """Print texts, those with a style in it; nothing in them is taken for markup."""
        from rich.text import Text

        words = [(part, "") if isinstance(part, str) else part for part in parts]
        # Some of it may be from a stranger's file.
        self.console.print(Text.assemble(*((printable(text, keep="\n\t"), style) for text, style in words)))

    @property
    def width(self) -> int:
        """How many characters a line of a listing may have."""
        return self.console.width if self.console.is_terminal else _LOG_WIDTH

    def show_device(self, script: "Script") -> None:
        """Print that CUDA is redirected, if it is."""
        if script.device is not None:
            self.print((REDIRECTED, "yellow"))

    def show_place(self, file: str, line: int | None, *, source: str) -> None:
        """Print where something is, and the line of code there."""
        self.print((f"  {line_name(file, line)}", "bold"))
        if source:
            self.print((f"    {source}", "cyan"))

    def show_rows(self, rows: Mapping[str, str | None]) -> None:
        """Print what has something to say, each with its name before it."""
        for name, words in rows.items():
            if words:
                self.print("  ", (f"{name:<{_WIDTH}}", "dim"), self._wrapped(words))

    def _wrapped(self, words: str) -> str:
        """Break lines at words where a terminal would break them anywhere."""
        if not self.console.is_terminal:
            return words
        indent = _WIDTH + 2
        width = max(40, self.console.width - indent)
        return textwrap.fill(words, width).replace("\n", "\n" + " " * indent)
