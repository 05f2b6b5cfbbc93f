"""`truestep rule`: the page of a rule, or the list of all rules.

Owns the options and what is printed. Pages are made in `truestep.rules.page`.
"""

import difflib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from truestep.cli._help import Command
from truestep.cli._page import STYLES, AsFormat, Format, Page
from truestep.errors import UsageError

if TYPE_CHECKING:
    from truestep.rules import Rule

_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\.md[^)]*\)")
_ELSEWHERE = re.compile(r" · \[all rules\]\([^)]+\)|^More.*\.md\)\.$", re.MULTILINE)


def rule(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RULE",
            show_default=False,
            help="A code (LOOP01), a name (stale-gradients) or a family (LOOP).",
        ),
    ] = None,
    *,
    rules: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also know the rules in this folder.")
    ] = None,
    format_: AsFormat = Format.text,
) -> None:
    """Explain a rule of check or doctor, or list the rules.

    The page of a rule has what it finds, why that is bad, and how to fix and to suppress it.
    Without RULE, or with a family, the rules are listed with one line each.

    Exit codes:
      0  printed
      2  unknown rule, or bad usage
      3  a bug in truestep: please report it

    Examples:
      truestep rule LOOP01
      truestep rule LOOP                    all rules about the training loop
      truestep rule                         all rules
      truestep rule --format json LOOP01
    """
    from truestep.rules import find_rules

    found = find_rules((rules,) if rules else ())
    chosen, is_list = _choose(found, names or [])
    if format_ is Format.json:
        print(json.dumps({"rules": [_fields(item, is_list=is_list) for item in chosen]}, indent=2))
    elif is_list:
        _show_list(chosen)
    else:
        for item in chosen:
            print(_page_text(item))


def _choose(rules: "list[Rule]", names: list[str]) -> "tuple[list[Rule], bool]":
    """Return the rules that are meant, and whether a list is wanted: of all, or of families."""
    from truestep.rules.page import family_of

    families = {family_of(item) for item in rules}
    wanted = [name.upper() if name.upper() in families else name for name in names]
    chosen: list[Rule] = []
    for name in wanted:
        meant = [
            item for item in rules if name in (family_of(item), item.name) or name.upper() == item.meta.code
        ]
        if not meant:
            raise UsageError(
                f"{name!r} is not a rule.{_hint(name, rules)} List all rules with: truestep rule"
            )
        chosen += [item for item in meant if item not in chosen]
    return (chosen, bool(families & set(wanted))) if names else (rules, True)


def _hint(name: str, rules: "list[Rule]") -> str:
    known = [*(item.meta.code for item in rules), *(item.name for item in rules)]
    close = [*difflib.get_close_matches(name.upper(), known, 1), *difflib.get_close_matches(name, known, 1)]
    return f" Did you mean {close[0]}?" if close else ""


def _fields(item: "Rule", *, is_list: bool) -> dict[str, Any]:
    from truestep.rules.page import is_for_machine

    fields = {
        "code": item.meta.code,
        "name": item.name,
        "severity": item.meta.severity,
        "title": item.title,
        "fix": item.meta.fix,
        "has_edits": item.make_edits is not None,
        "command": "doctor" if is_for_machine(item) else "check",
    }
    return fields if is_list else {**fields, "page": _page_text(item)}


def _show_list(rules: "list[Rule]") -> None:
    page = Page()
    width = max((len(item.name) for item in rules), default=0)
    for item in rules:
        severity = (f"{item.meta.severity:<8}", STYLES[item.meta.severity])
        page.print(
            (f"{item.meta.code:<8}", "bold"), severity, f"{item.name:<{width}}  {item.title.rstrip('.')}"
        )


def _page_text(item: "Rule") -> str:
    """Return the page as Markdown, without links to other pages of the documentation."""
    from truestep.rules.page import build_page

    try:
        text = "\n".join(build_page(item))
    except KeyError:  # a rule from elsewhere that lacks a section
        return f"# {item.meta.code} {item.name}\n\n{item.document}"
    return _LINK.sub(r"\1", _ELSEWHERE.sub("", text)).rstrip()


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Command)(rule)
