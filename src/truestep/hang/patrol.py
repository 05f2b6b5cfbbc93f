"""The patrol: looks at a running job from outside, and reports a hang once it is certain.

Owns how often it looks, and that one look is not enough. Reads files that processes of the job have written.
"""

import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from truestep.hang.causes import Cause, find_cause
from truestep.hang.verdict import Verdict, find_verdict
from truestep.watch.evidence import kernel
from truestep.watch.evidence.stalls import ASK, Standing

_LOOK_S = 0.5
_SURE_S = 1.5
"""For how long a verdict must stay the same."""
_STALE_S = 4.0
"""After which time a file counts no more: its process no longer writes."""
_MAX_BYTES = 4 << 20
_ABORTED = -signal.SIGABRT
"""How a backend of torch's ends a process whose collective has failed."""


class Patrol:
    """Looks at the folder that the processes of a job write into."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_s = 0.0
        self._key: tuple[object, ...] = ()
        self._since_s = 0.0
        self._reported: tuple[object, ...] = ()
        self.standings: list[Standing] = []
        """Where all ranks stood at the last look."""

    def look(self) -> tuple[Verdict, Cause | None] | None:
        """Return a verdict once, as soon as it is certain; call it as often as you like."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + _LOOK_S
        self.standings = self._standings()
        verdict = find_verdict(self.standings)
        key = verdict.key if verdict is not None else ()
        if key != self._key:
            self._key, self._since_s = key, now_s
        if verdict is None or key == self._reported or now_s - self._since_s < _SURE_S:
            return None
        self._reported = key
        return find_cause(verdict)

    def explain_failure(self, codes: Mapping[int, int]) -> tuple[Verdict, Cause | None] | None:
        """Return why a collective failed in a job that has ended, if the ranks' last facts show it.

        `codes`: how the ranks ended that failed first, negative when a signal killed them. One that ended by
        anything but its collective is the answer: the collectives of the others failed for it.
        """
        self.read_last()
        failed = {item.rank for item in self.standings if item.error and item.doing == "waiting"}
        if any(rank not in failed and code != _ABORTED for rank, code in codes.items()):
            return None
        verdict = find_verdict(self.standings) if self.standings else None
        if verdict is None or verdict.key == self._reported:
            return None
        return find_cause(verdict)

    def has_raised(self, rank: int) -> bool:
        """Whether a rank's script has raised an error, so that its traceback was printed."""
        return any(item.rank == rank and item.error for item, _ in self._read())

    def read_last(self) -> None:
        """Take what the ranks of a job that has ended wrote last, if a collective has failed in it."""
        found = self._read()
        has_failed = any(item.error and item.doing == "waiting" for item, _ in found)
        asked_s = _age_s(self._folder / ASK)
        answers = [item for item, age_s in found if item.doing != "living" or age_s <= asked_s]
        self.standings = answers if has_failed else []

    def _standings(self) -> list[Standing]:
        found = []
        for item, age_s in self._read():
            state = kernel.state_of(item.pid)
            if state in ("T", "t"):
                found.append(replace(item, doing="stuck", how="stopped", pending=None))
            elif item.doing not in ("ended", "living") and not item.error and age_s > _STALE_S:
                found.append(replace(item, doing="living", pending=None))
            elif state not in ("Z", "X"):  # who started it knows how it ended
                found.append(item)
        return found

    def _read(self) -> list[tuple[Standing, float]]:
        found = []
        for path in sorted(self._folder.glob("standing-*.json")):
            try:
                if path.stat().st_size <= _MAX_BYTES:
                    found.append((Standing.unpack(path.read_text()), _age_s(path)))
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return found


def _age_s(path: Path) -> float:
    """Return for how long a file has been as it is; 0 if there is none."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
