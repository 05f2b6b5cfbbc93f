"""The help of a command: one page like a manual page, plain text, at most 80 columns.

Owns how a page looks. What it says is the docstring of the command: its text stands before the options; what
follows "Exit codes:" and "Examples:" stands after them, as it is written.
"""

import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

_TAIL = re.compile(r"^(?:Exit codes|Examples):$", re.MULTILINE)
_OPTIONS = "Options"
_MAX_UNGROUPED = 6
_ENDED = 130

Row = tuple[str, str]


class Command(TyperCommand):
    """A command whose help is written here, without rich: it starts in half the time."""

    def invoke(self, ctx: Any) -> Any:
        """Run it. Ctrl-C before there is anything to report is one line, not a traceback."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("truestep: ended by Ctrl-C or SIGTERM before anything was known", err=True)
            raise typer.Exit(_ENDED) from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page."""
        _write(self, ctx, formatter)


class Group(TyperGroup):
    """The same for the list of all commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page."""
        _write(self, ctx, formatter)


def _write(command: Any, context: Any, formatter: Any) -> None:
    body, tail = _split(command.help or "")
    params = [param for param in command.get_params(context) if not getattr(param, "hidden", False)]
    words = " ".join([context.command_path, *_usage(command, params)])
    texts = [f"{typer.style('Usage:', bold=True)} {words}"]
    texts += [_paragraph(text, width=formatter.width) for text in body]
    formatter.write("\n\n".join(texts) + "\n")
    lists = {"Commands": _commands(command), "Arguments": _arguments(command, params), **_options(params)}
    for name, rows in lists.items():
        if rows:
            formatter.write("\n")
            formatter.write_heading(typer.style(name, bold=True))
            formatter.indent()
            formatter.write_dl(rows)
            formatter.dedent()
    formatter.write("".join(f"\n{text}\n" for text in tail))


def _split(text: str) -> tuple[list[str], list[str]]:
    """Return the paragraphs before the options, and the sections after them."""
    found = _TAIL.search(text)
    at = found.start() if found else len(text)
    body = [part for part in text[:at].split("\n\n") if part.strip()]
    tail = [part.strip("\n") for part in re.split(r"\n\n(?=\S)", text[at:]) if part.strip()]
    return body, [re.sub(r"^(.+:)$", _bold, part, count=1, flags=re.MULTILINE) for part in tail]


def _bold(found: re.Match[str]) -> str:
    return typer.style(found.group(1), bold=True)


def _paragraph(text: str, *, width: int) -> str:
    """Fill lines; keep indented text unmodified."""
    if text.startswith(" "):
        return text
    return textwrap.fill(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)


def _usage(command: Any, params: Iterable[Any]) -> list[str]:
    pieces = ["[OPTIONS]"]
    for param in params:
        if param.param_type_name == "argument":
            name = _metavar(param) + ("..." if param.nargs == -1 else "")
            pieces.append(name if param.required else f"[{name}]")
    return [*pieces, "COMMAND ..."] if hasattr(command, "commands") else pieces


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _commands(command: Any) -> list[Row]:
    named = getattr(command, "commands", {})
    return [(name, (one.help or "").partition("\n")[0]) for name, one in named.items()]


def _arguments(command: Any, params: Iterable[Any]) -> list[Row]:
    # Asked where it is written: click 8.5 drops the help that typer before 0.27 gives it for an argument.
    written = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    rows = []
    for param in params:
        if param.param_type_name == "argument":
            (info,) = written[param.name].__metadata__
            rows.append((_metavar(param), info.help or ""))
    return rows


def _options(params: Iterable[Any]) -> dict[str, list[Row]]:
    """Return the options by group, those of no group last; a few are one group."""
    options = [param for param in params if param.param_type_name == "option"]
    groups: dict[str, list[Row]] = {}
    for option in options:
        name = getattr(option, "rich_help_panel", None) if len(options) > _MAX_UNGROUPED else None
        groups.setdefault(name or _OPTIONS, []).append((_names(option), _help(option)))
    rest = groups.pop(_OPTIONS, [])
    return groups | {_OPTIONS: rest}


def _names(param: Any) -> str:
    names = ", ".join(sorted(param.opts, key=len))
    return names if param.is_flag else f"{names} {_metavar(param)}"


def _help(param: Any) -> str:
    words = param.help or ""
    shown = param.show_default
    if isinstance(shown, str):
        return f"{words} (default: {shown})"
    default = getattr(param.default, "value", param.default)
    default = f"{default:g}" if isinstance(default, float) else default
    has_default = shown and not param.is_flag and default is not None
    return f"{words} (default: {default})" if has_default else words
