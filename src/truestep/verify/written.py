"""The files that runs write into their copies of the folder: which differ, and in what.

Owns which files are compared. What differs in one is left to `formats`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truestep.verify.formats import difference, is_beginning

_MAX_TOTAL = 4 << 30
"""How much of the first run's files is kept: what is more is not compared."""
_VARYING = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
"""Times, process ids and random numbers in names of files."""
_MAX_NAMED = 3


@dataclass(kw_only=True)
class WrittenFiles:
    """The files that the first run wrote into its folder, and how those of other runs compare."""

    folder: Path
    """Where the first run's are kept."""
    names: list[str]
    too_large: list[str]
    num_runs: int = 0
    """How many runs were compared with the first one."""
    unlike: dict[str, str] = field(default_factory=dict)
    """What differs, by name."""
    growing: dict[str, None] = field(default_factory=dict)
    """What was being written when the runs were ended: of two files one is the beginning of the other."""

    @property
    def num_compared(self) -> int:
        """How many files there are that could be compared."""
        return len({*self.names, *self.unlike} - self.growing.keys())

    def compare(self, files: Mapping[str, Path], *, was_ended: bool) -> None:
        """Compare what another run has written; `was_ended`: not by the script, but after so many steps."""
        self.num_runs += 1
        theirs = {name: path for name, path in files.items() if name not in self.too_large}
        for name, other in _pairs(self.names, list(theirs)):
            if name is None or other is None:
                self.unlike.setdefault(name or other or "", "in one run only")
                continue
            found = difference(self.folder / name, theirs[other])
            if found is not None and was_ended and is_beginning(self.folder / name, theirs[other]):
                self.growing[name] = None
            elif found is not None:
                self.unlike.setdefault(name, found)

    def as_fields(self) -> dict[str, Any]:
        """Return it as the contract has it."""
        differing = [{"path": name, "what": what} for name, what in self.unlike.items()]
        return {
            "compared": self.num_compared,
            "differing": differing,
            "not_compared": [*self.too_large, *self.growing],
        }

    @property
    def words(self) -> str:
        """What is told after the verdict: which files differ, and which were not compared."""
        parts = []
        if self.unlike:
            verb = "differs" if len(self.unlike) == 1 else "differ"
            named = ", ".join(f"{name} ({what})" for name, what in [*self.unlike.items()][:_MAX_NAMED])
            num_more = len(self.unlike) - _MAX_NAMED
            named += f" and {num_more} more" if num_more > 0 else ""
            which = f"{len(self.unlike)} of {self.num_compared} files"
            which = "the file" if self.num_compared == 1 else which
            parts.append(f"{which} written {verb}: {named}")
        for reason, names in (("too large", self.too_large), ("still being written", [*self.growing])):
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                parts.append(f"not compared: {names[0]}{more} ({reason})")
        return "; ".join(parts)


def keep(files: Mapping[str, Path], folder: Path) -> WrittenFiles:
    """Move what the first run has written into a folder of its own, so that the next run may write."""
    names, too_large, total = [], [], 0
    for name, path in files.items():
        total += path.stat().st_size
        if total > _MAX_TOTAL:
            total -= path.stat().st_size
            too_large.append(name)
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        path.rename(folder / name)
        names.append(name)
    return WrittenFiles(folder=folder, names=names, too_large=too_large)


def _pairs(ours: list[str], theirs: list[str]) -> list[tuple[str | None, str | None]]:
    """Pair files by name; of those left, by names without what changes from run to run."""
    pairs: list[tuple[str | None, str | None]] = [(name, name) for name in ours if name in theirs]
    left = sorted(name for name in theirs if name not in ours)
    for name in sorted(name for name in ours if name not in theirs):
        other = next((item for item in left if _VARYING.sub("#", item) == _VARYING.sub("#", name)), None)
        if other is not None:
            left.remove(other)
        pairs.append((name, other))
    return [*pairs, *((None, name) for name in left)]
