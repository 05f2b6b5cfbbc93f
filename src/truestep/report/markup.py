"""HTML from parts: every text is escaped, whoever wrote it, unless it was made here.

Owns escaping.
"""

import html
from collections.abc import Iterable, Sequence

_CONTROLS = [*range(9), 11, 12, *range(14, 32), 127, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_VISIBLE = {code: f"\\u{code:04x}" for code in _CONTROLS}
"""Characters that nobody sees and that turn text around or end it: shown by their number instead."""
_VOID = frozenset({"meta", "input", "br", "hr"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Escape a value; what is markup already stays."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(str(value).translate(_VISIBLE)))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element. `class_` is class, `aria_label` is aria-label; None leaves an attribute out."""
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        parts.append(word if value is True else f'{word}="{text(value)}"')
    opening = f"<{' '.join(parts)}>"
    return Markup(opening if name in _VOID else f"{opening}{join(children)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """Return parts one after the other; None is nothing."""
    return Markup("".join(text(part) for part in parts if part is not None))


def table(head: Sequence[object], rows: Iterable[Sequence[object]], *, label: str) -> Markup:
    """Return a table with a name for those who do not see it; it scrolls by itself if it is too wide."""
    heads = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", label, class_="unseen"),
            tag("thead", heads),
            tag("tbody", *body),
            class_="wide" if len(head) > 3 else None,
        ),
        class_="scroll",
        tabindex="0",
        role="group",
        aria_label=label,
    )
