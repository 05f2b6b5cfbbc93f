"""What loader workers leave for the process that started them: files beside the tape.

Owns their names. A worker may be killed at any moment, so a file is there as a whole or not at all.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from truestep.watch.script.tape import Tape


class Left:
    """The files of one kind, made by the process that starts workers."""

    def __init__(self, tape: Tape, kind: str) -> None:
        self._pid = os.getpid()
        self._folder, self._kind = Path(tape.path).parent, kind

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is another process than the one that this was made in."""
        return os.getpid() != self._pid

    def write(self, value: Any) -> None:
        """Leave something, in place of what this worker has left before."""
        path = self._folder / f"{self._kind}-{self._pid}-{os.getpid()}.json"
        path.with_suffix(".part").write_text(json.dumps(value))
        path.with_suffix(".part").rename(path)

    def read(self) -> Iterator[Any]:
        """Yield what the workers have left."""
        for path in sorted(self._folder.glob(f"{self._kind}-{self._pid}-*.json")):
            yield json.loads(path.read_text())
