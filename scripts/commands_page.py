"""The pages of the commands on the site: `commands.md` and a page for each, from the real help.

What a page shows is the help of `truestep COMMAND --help`, its lists as tables.
"""

import re
from collections.abc import Iterator
from typing import Any

import typer

from truestep.cli import build_app

WIDE = 10_000
"""Columns: no line of the help is broken."""
STYLE = re.compile(r"\x1b\[[0-9;]*m")
ROW = re.compile(r"^ {2}(?P<name>\S.*?)(?: {2,}(?P<words>.*))?$")
TABLES = {
    "Arguments": ("argument", "is"),
    "Commands": ("command", "does"),
    "Exit codes": ("exit code", "means"),
}
OPTION = re.compile(r"(?<![`\w-])--[a-z][a-z-]*")
GUIDES = {
    "check": "../check.md",
    "rule": "../rules.md",
    "verify": "../verify.md",
    "tune": "../tune.md",
    "replay": "../how-to/replay.md",
    "show": "../how-to/show.md",
    "run": "../scale.md",
    "report": "../report.md",
    "watch": "../watching.md",
    "export": "../watching.md#for-other-tools",
    "explain": "../tensors.md",
    "schema": "../agents.md",
    "mcp": "../agents.md#as-an-mcp-server",
}
"""Where there is more to read than the help."""


def help_of(command: Any, name: str) -> list[str]:
    """Return the help's paragraphs and sections, each as one text."""
    context = command.context_class(command, info_name=name, terminal_width=WIDE, max_content_width=WIDE)
    return [part for part in STYLE.sub("", command.get_help(context)).split("\n\n") if part.strip()]


def rows_of(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the rows of a list: a name, and words beside it or on the line below."""
    name = ""
    for line in lines:
        found = ROW.match(line)
        if found is None:
            yield name, line.strip()
        elif found["words"] is None:
            name = found["name"]
        else:
            yield found["name"], found["words"]


def marked(words: str) -> str:
    """Return a sentence with options as code."""
    return OPTION.sub(r"`\g<0>`", words)


def table(heads: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    """Return a table; names are code, and bars in them are kept."""
    cells = [(f"`{name}`".replace("|", "\\|"), marked(words).replace("|", "\\|")) for name, words in rows]
    return "\n".join([f"| {heads[0]} | {heads[1]} |", "|---|---|", *(f"| {a} | {b} |" for a, b in cells)])


def section(title: str, lines: list[str]) -> Iterator[str]:
    """Yield a list of the help with its heading; examples stay as they are."""
    if title == "Examples":
        yield f"## {title}\n"
        yield "\n".join(["```", *(line.removeprefix("  ") for line in lines), "```\n"])
        return
    rows = [row for row in rows_of([line for line in lines if line.startswith("  ")]) if row[0] != "--help"]
    if rows:
        yield f"## {title}\n"
        yield table(TABLES.get(title, ("option", "does")), rows) + "\n"
    yield from (f"{line}\n" for line in lines if not line.startswith("  "))


def build(parts: list[str]) -> Iterator[str]:
    """Yield the lines of a page after its heading."""
    usage, *rest = parts
    yield f"```\n{usage.removeprefix('Usage: ')}\n```\n"
    for part in rest:
        first, *lines = part.split("\n")
        if first.endswith(":") and lines:
            yield from section(first.removesuffix(":"), lines)
        else:
            yield (f"```\n{part}\n```" if part.startswith(" ") else marked(part)) + "\n"


def page_of(name: str, command: Any) -> str:
    """Return the page of one command."""
    more = f" · [the guide]({GUIDES[name]})" if name in GUIDES else ""
    head = f"# truestep {name}\n\nThe help of the command · [all commands](../commands.md){more}\n"
    return "\n".join([head, *build(help_of(command, f"truestep {name}"))])


def index_of(app: Any) -> str:
    """Return the page of all commands."""
    head = "# Commands\n\nThe help of the commands.\n"
    text = "\n".join([head, *build(help_of(app, "truestep"))])
    return re.sub(r"^\| `(\w+)` \| (?=[A-Z])", r"| [`\1`](commands/\1.md) | ", text, flags=re.MULTILINE)


def build_pages() -> dict[str, tuple[str, str]]:
    """Return each page: its path on the site, the file that it is built from, and its text."""
    app: Any = typer.main.get_command(build_app())
    pages = {"commands.md": ("src/truestep/cli/__init__.py", index_of(app))}
    for name, command in app.commands.items():
        pages[f"commands/{name}.md"] = (f"src/truestep/cli/{name}.py", page_of(name, command))
    return pages
