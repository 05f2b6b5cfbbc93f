"""Pictures: the house's colours, and a figure that saves itself as SVG or PNG and shows itself in notebooks.

Owns matplotlib, which is optional. What is drawn is up to those who ask for a figure.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from truestep.base.runfiles import replacing
from truestep.errors import UsageError

INK, PAPER, FAINT = "#1b1f24", "#ffffff", "#d0d7de"
COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#1b7c83", "#57606a")
"""For things that are told apart: readable on white, and apart for most colour-blind people in this order."""
_FORMATS = (".svg", ".png")
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "truestep",
}


_MISSING = "pictures need matplotlib. Install it: pip install 'truestep[pictures]'"


def require_pictures(path: Path) -> None:
    """Refuse a picture that cannot be drawn or saved before the work is done that it shows."""
    if path.suffix not in _FORMATS:
        raise UsageError(f"pictures are saved as .svg or .png, got {path.name!r}. Use one of them.")
    if find_spec("matplotlib") is None:
        raise UsageError(_MISSING)


class Picture:
    """A figure of a size in inches: draw on it, then save it, or leave it as the last line of a cell."""

    def __init__(self, *, width: float, height: float) -> None:
        try:
            import matplotlib  # noqa: PLC0415 - optional
            from matplotlib.figure import Figure  # noqa: PLC0415
        except ImportError as error:
            raise UsageError(_MISSING) from error
        self._matplotlib: Any = matplotlib
        self._figure: Any = Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")

    @contextmanager
    def drawing(self) -> Iterator[Any]:
        """Give matplotlib's figure, for drawing in the house's style; nothing global stays changed."""
        with self._matplotlib.rc_context(_STYLE):
            yield self._figure

    def save(self, path: str | Path) -> Path:
        """Write an `.svg` or `.png` file, the same bytes for the same drawing, and return its path."""
        path = Path(path)
        require_pictures(path)
        try:
            with replacing(path) as file:
                file.write(self.to_bytes(path.suffix[1:]))
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}). Name another file.") from error
        return path

    def to_bytes(self, kind: str) -> bytes:
        """Return the content of an `svg` or `png` file."""
        buffer = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else None
        with self.drawing() as figure:
            figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
        return buffer.getvalue()

    def _repr_svg_(self) -> str:
        return self.to_bytes("svg").decode()
