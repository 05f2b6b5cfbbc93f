"""Knobs that tests plant, and a folder with the script that they are made for."""

import shutil
from pathlib import Path
from typing import Any

from truestep.tune.knob import Knob

SCRIPTS = Path(__file__).parent / "scripts"


def put(folder: Path, *names: str) -> Path:
    """Copy scripts into a folder, beside the planted knobs; return the first one's path."""
    for name in (*names, "planted.py"):
        shutil.copy(SCRIPTS / name, folder)
    return folder / names[0]


def knob(name: str, value: dict[str, Any], *, changes_bits: bool = False) -> Knob:
    """Return a knob with one position, turned by `scripts/planted.py`."""
    return Knob(
        name=name,
        propose=lambda _facts, _chosen: [value],
        words=lambda _value: name,
        lines=lambda _value: [f"# {name}"],
        changes_bits=changes_bits,
        home="planted:apply",
    )
