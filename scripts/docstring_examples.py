"""An extension of griffe: `>>>` examples in docstrings become code blocks on the site.

Without it Markdown reads them as quotations. What docstrings say is in src/.
"""

from typing import Any

from griffe import Extension, Object

PROMPT = ">>> "


def fenced(text: str) -> str:
    """Return the text with a fence around each example, which ends at the next empty line."""
    lines: list[str] = []
    is_inside = False
    for line in text.splitlines():
        if line.startswith(PROMPT) and not is_inside:
            lines += ["", "```pycon"]
            is_inside = True
        elif not line.strip() and is_inside:
            lines.append("```")
            is_inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if is_inside else lines)


class DocstringExamples(Extension):
    """Fences the examples of everything that has a docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite its docstring."""
        if obj.docstring is not None and PROMPT in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
