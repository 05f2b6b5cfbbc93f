"""Another commit of the user's repository, in the place of the files that the working folder has.

Owns asking git. Files that git does not track, such as data, stay as they are. Nothing in the repository is
changed: no checkout, no worktree.
"""

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from truestep.errors import UsageError

_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python before 3.11.4 knows no filters."""


class Commit:
    """One commit, as seen from a folder of its repository."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self.digest = _git(folder, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
        """Its full hash; empty if there is no such commit."""

    @property
    def top(self) -> Path:
        """The repository's own folder."""
        return Path(_git(self._folder, "rev-parse", "--show-toplevel").decode().strip())

    def put(self, work: Path) -> None:
        """Replace what git tracks in a copy of the folder by the files of this commit."""
        for name in _git(self._folder, "ls-files", "-z").split(b"\0"):
            path = work / name.decode()
            if name and (path.is_file() or path.is_symlink()):
                path.unlink()
        archive = _git(self._folder, "archive", "--format=tar", self.digest)
        if not archive:
            raise UsageError(f"git cannot read the commit {self.name} in {self._folder}. Fetch it first.")
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(work, **_SAFELY)


def _git(folder: Path, *words: str) -> bytes:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, check=False)
    except FileNotFoundError:
        return b""
    return done.stdout if done.returncode == 0 else b""
