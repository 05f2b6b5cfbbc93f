"""What a run is compared with besides runs of the same script: an interpreter, a commit, a saved run.

Owns telling which of the three a word on the command line is.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from truestep.errors import UsageError
from truestep.verify.fingerprint import Fingerprint, is_fingerprint, read
from truestep.watch.launch.commit import Commit


@dataclass(frozen=True, kw_only=True)
class Other:
    """One of the three."""

    kind: Literal["python", "commit", "file"]
    name: str
    python: str | None = None
    commit: Commit | None = None
    fingerprint: Fingerprint | None = None


def find_other(name: str, folder: Path) -> Other:
    """Return what a word stands for; files come before commits."""
    path = Path(name)
    if path.is_file() and is_fingerprint(path):
        return Other(kind="file", name=path.name, fingerprint=read(path))
    if path.is_file() and os.access(path, os.X_OK):
        return Other(kind="python", name=name, python=str(path.absolute()))
    if path.is_file():
        raise UsageError(
            f"{name} is neither a fingerprint nor an interpreter. Write a fingerprint with --save."
        )
    commit = Commit(name, folder)
    if commit.digest:
        return Other(kind="commit", name=f"commit {name}", commit=commit)
    raise UsageError(
        f"--against takes a fingerprint, another Python or a commit, and {name} is none of them in {folder}."
    )
