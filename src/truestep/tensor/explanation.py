"""An explanation as its user meets it: printed, in a notebook, as JSON.

Owns nothing but these doors: the data is `facts`, the text `layout`.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from truestep.tensor import layout
from truestep.tensor.facts import Account

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, kw_only=True)
class Explanation(Account):
    """All that `explain` found out: print it, leave it as the last line of a cell, or read its fields."""

    def __str__(self) -> str:
        return layout.text(self)

    def __rich__(self) -> "RenderableType":
        return layout.rich(self)

    def _repr_html_(self) -> str:
        return layout.html(self)

    def as_fields(self) -> dict[str, Any]:
        """Return all of it as plain dictionaries, lists and numbers, fit for JSON."""
        fields: dict[str, Any] = layout.plain(asdict(self))
        return fields
