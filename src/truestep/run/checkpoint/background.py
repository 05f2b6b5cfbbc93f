"""Saving while training goes on: the states are copied at once and written by a thread.

Owns the thread and its failures. Leaves writing to `store`.
"""

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

from truestep.run.checkpoint.snapshot import Snapshot, plain_json
from truestep.run.checkpoint.state import Json, copy, pack
from truestep.run.checkpoint.store import Store


class BackgroundSaver:
    """Writes one snapshot at a time in the background; the memory of the copy is kept and used again.

    Each save has a daemon thread of its own, so nothing runs between saves or at import, and a forked child
    inherits none. A script that ends without `close()` still waits for the save under way.

    Several processes submit the same cursors in the same order; each copies and writes its own parts.
    Without tensors that are spread over them, only the first process does anything. Where one of them dies,
    the others wait for it no longer than the timeout of the crew's group, then fail.

    Example: `saver.submit(snapshot)`, then `saver.poll()` at every step, and `saver.close()` at the end.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._copied: dict[str, Any] | None = None
        self.lost: int | None = None
        """The cursor of the last snapshot, if it could not be written."""
        self.write_s: float | None = None
        """How long the last snapshot took to write, once it is written."""
        # Interpreter exit kills daemon threads wherever they are; this lets the last save finish first. It is
        # registered before the owner's own `close`, which so runs earlier and can tell of a failure.
        atexit.register(self.wait)

    @property
    def is_busy(self) -> bool:
        """Whether a save is under way."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, snapshot: Snapshot, *, copies: bool = True) -> None:
        """Copy a snapshot and begin to write it; waits for the one before it first.

        Without a copy there is no second state in memory, and the caller leaves the states as they are until
        `wait` is over. Raises StateError at once for a state that cannot be stored, and what `wait` raises.
        """
        self.wait()
        facts = plain_json(snapshot.facts, "facts")
        states = self._own(snapshot.states)
        if states is None:
            return
        spare, self._copied = self._copied, None
        if copies:
            states = self._copied = copy(states, into=spare)
        held = Snapshot(cursor=snapshot.cursor, states=states, facts=facts)
        self.lost = None
        self._start(lambda: self._save(held))

    def attach(self, cursor: int, name: str, *, value: Json) -> None:
        """Do what `Store.attach` does, in the background, after the save under way; the first process only.

        If that save failed there is nothing to attach to, and `poll` or `wait` tells of the save only.
        """
        if not self._store.crew.is_first:
            return
        self._start(lambda: None if cursor == self.lost else self._store.attach(cursor, name, value=value))

    def wait(self) -> None:
        """Block until nothing is under way; raise what went wrong, once."""
        if self._thread is not None:
            self._thread.join()
        self.poll()

    def poll(self) -> None:
        """Raise what went wrong in a finished save, once; never block."""
        if self._failure is not None and not self.is_busy:
            failure, self._failure = self._failure, None
            raise failure

    def close(self) -> None:
        """Wait for the save under way, give the copy's memory back, and raise what went wrong."""
        try:
            self.wait()
        finally:
            atexit.unregister(self.wait)
            self._copied = None

    def _own(self, states: dict[str, Any]) -> dict[str, Any] | None:
        """Return what this process has to save of the states; None if that is nothing."""
        crew = self._store.crew
        if crew.size == 1 or (crew.is_first and self._copied is not None):
            return states
        parts = pack(states).parts
        if parts:
            # Not in the saving thread: two threads that import torch's modules can meet half-made ones.
            import truestep.run.checkpoint.together  # noqa: F401, PLC0415
        if crew.is_first:
            return states
        # What is not spread over processes is the same on all, and the first one saves it.
        return dict(parts) or None

    def _start(self, job: Callable[[], object]) -> None:
        before = self._thread
        self._thread = threading.Thread(
            target=self._work, args=(job, before), name="truestep-save", daemon=True
        )
        self._thread.start()

    def _save(self, snapshot: Snapshot) -> None:
        begun_s = time.monotonic()
        try:
            self._store.save(snapshot)
        except BaseException:
            if not self._store.is_published(snapshot.cursor):  # removing older ones can fail too
                self.lost = snapshot.cursor
            raise
        self.write_s = time.monotonic() - begun_s

    def _work(self, job: Callable[[], object], before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        if self._failure is not None:
            return
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self._failure = error
