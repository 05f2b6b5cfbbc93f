"""The script that draws charts in the browser: plotly's, from the package, packed for the page.

Owns plotly, which is optional. Nothing is fetched from anywhere: a report opens with no network.
"""

import base64
import gzip
import hashlib
from dataclasses import dataclass
from functools import cache

from truestep.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A script as it stands in the page, and the hash by which the page allows it."""

    base64: str
    csp_hash: str


@cache
def plotly_script() -> Packed:
    """Return plotly's script, compressed to two fifths: by itself it has nearly 5 MB."""
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UsageError("reports need plotly. Install it: pip install 'truestep[report]'") from error
    script = get_plotlyjs().encode()
    return Packed(base64=pack(script), csp_hash=csp_hash(script))


def pack(content: bytes) -> str:
    """Compress bytes for the page, the same for the same content."""
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


def csp_hash(content: bytes) -> str:
    """Return the name of a script for a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"
