"""What commands that run a script have in common: its name on the command line, and lines on a terminal.

Owns how a place in a file, named rows and severities look. What is said is each command's own.
"""

import textwrap
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from truestep.errors import UsageError

STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}
"""By severity."""
_WIDTH = 7


class Format(StrEnum):
    """How the answer is printed."""

    text = "text"
    json = "json"


def require_script(script: str | Path, *, example: str) -> None:
    """Refuse what is no file, with an example of how the command is called."""
    if not Path(script).is_file():
        raise UsageError(
            f"{script} is not a file. Options of truestep come before the script, its own after it: {example}"
        )


def short(file: str) -> str:
    """Return a path as seen from the working folder, if it lies in it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


class Page:
    """Lines on standard output, with colours if it is a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(highlight=False, soft_wrap=True)

    def print(self, *parts: str | tuple[str, str]) -> None:
        """Print texts, those with a style in it; nothing in them is taken for markup."""
        from rich.text import Text

        self.console.print(Text.assemble(*parts))

    def show_place(self, file: str, line: int | None, *, source: str) -> None:
        """Print where something is, and the line of code there."""
        self.print((f"  {short(file)}:{line}", "bold"))
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
