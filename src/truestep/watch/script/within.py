"""Observing a part of a process that runs already: hooks are put in place, and taken away after it.

Owns that one part is observed at a time, and that nothing of it is left. Functions that modules have imported
by name are observed too, except in torch, NumPy, the standard library and truestep.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from truestep.errors import UsageError
from truestep.watch.hooks import table
from truestep.watch.plan import Plan
from truestep.watch.script.import_hooks import expect
from truestep.watch.script.tape import Tape

_ENGINES = ("numpy", "torch", "truestep")
_starting = threading.Lock()


class Part:
    """A part of this process that is observed, from here to `end`. Evidence goes to the folder."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        with _starting:
            if table.is_hooked():
                raise UsageError(
                    "this process is already observed by truestep, and two observations would mix their "
                    "evidence. End the first `with truestep.checking()` block before you begin another "
                    "one, and start a script that has such a block with python instead of truestep."
                )
            self._tape = Tape(str(folder.absolute()), plan, is_part=True)
            self._stop_waiting: Callable[[], None] = lambda: None
            try:
                self._stop_waiting = expect(self._tape)
                table.give_to_importers(self._is_engine)
            except BaseException:
                self.end()
                raise

    @property
    def num_steps(self) -> int:
        """How many steps optimizers have made in it."""
        return self._tape.num_steps

    def write(self) -> None:
        """Write all that has been observed so far."""
        self._tape.flush()

    def end(self, error: BaseException | None = None) -> None:
        """Observe no more, and leave torch as it was. An error is what the part has raised."""
        self._tape.failed_with = error
        try:
            self._tape.close()
        finally:
            self._stop_waiting()
            table.remove()

    def _is_engine(self, module: ModuleType) -> bool:
        if module.__name__.partition(".")[0] in _ENGINES:
            return True
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and self._tape.sites.is_engine(file)
