"""Imports of modules: observers are put in place just after the script's own import of a module has ended.

Owns which module brings which observers. Imports none of those modules itself.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from truestep.watch.hooks.events import EVENTS, put_events
from truestep.watch.script.tape import Tape

_OBSERVERS = {
    # A function that is called with the tape; then what is in the table of events is put in place.
    # Held first: what is noted is then what the script gets.
    "os": ("control.freeze:freeze_os", "hooks.sources:watch_os", "script.child_processes:watch_os"),
    "time": ("control.freeze:freeze_time", "hooks.sources:watch_time"),
    "datetime": ("control.freeze:freeze_datetime",),
    "threading": ("control.threads:order_threads",),
    "concurrent.futures": ("control.threads:order_completed",),
    "concurrent.futures.thread": ("control.threads:order_pools",),
    "multiprocessing.spawn": ("script.child_processes:watch_spawning",),
    "multiprocessing.util": ("control.children:redirect_children",),
    "random": (
        "control.freeze:freeze_random",
        "hooks.sources:watch_random",
        "hooks.draws:watch_random",
    ),
    "numpy": (
        "control.freeze:freeze_numpy",
        "hooks.sources:watch_numpy",
        "hooks.draws:watch_numpy",
    ),
    "torch": ("control.redirect:redirect_cuda", "hooks.engine:watch_torch"),
    "torchdata.stateful_dataloader.stateful_dataloader": ("control.vary:vary_stateful",),
    "torch._dynamo.convert_frame": ("hooks.compiled:watch_compiler",),
    "truestep.run.data.loader": ("control.vary:vary_loader",),
    "truestep.run.train.run": ("control.vary:vary_run",),
}


_CHANGE = ("control.", "hooks.engine")
"""Who changes something on purpose: only what cannot be changed ends the script."""


def expect(tape: Tape) -> Callable[[], None]:
    """Install the observers of what is there already, and wait for the rest; return what ends the wait."""
    waiting = {*_OBSERVERS, *EVENTS}
    for name in (*_OBSERVERS, *EVENTS):
        if name in waiting and name in sys.modules:
            waiting.discard(name)
            _install(name, tape)
    finder = _Finder(waiting, tape)
    sys.meta_path.insert(0, finder)
    return lambda: sys.meta_path.remove(finder)


def _install(name: str, tape: Tape) -> None:
    for where in _OBSERVERS.get(name, ()):
        home, _, function = where.partition(":")
        act = getattr(import_module(f"truestep.watch.{home}"), function)
        if home.startswith(_CHANGE):
            act(tape)
        else:
            tape.attempt(act)
    if name != "torch":  # there it has its place among other things: see `engine`
        put_events(tape, name)


class _Finder:
    """Stands before Python's own finders, leaves the finding to them, and notes when a module is done."""

    def __init__(self, waiting: set[str], tape: Tape) -> None:
        self._waiting = waiting
        self._tape = tape

    def find_spec(  # limits: Python calls it like this
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self._tape.is_on or name not in self._waiting:
            return None
        self._waiting.discard(name)
        try:
            spec = self._find_behind_us(name, path, target)  # other finders may ask us again meanwhile
        finally:
            self._waiting.add(name)  # looked for is not yet imported: many ask only whether there is one
        execute = getattr(getattr(spec, "loader", None), "exec_module", None)
        if spec is not None and execute is not None:
            # An attribute of this one loader: type and name of the loader stay what they are.
            spec.loader.exec_module = self._then_install(name, execute)  # type: ignore[union-attr, method-assign]
        return spec

    def _find_behind_us(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _then_install(self, name: str, execute: Callable[[ModuleType], Any]) -> Callable[[ModuleType], Any]:
        def exec_module(module: ModuleType) -> None:
            loader = module.__spec__.loader if module.__spec__ else None
            if loader is not None:
                vars(loader).pop("exec_module", None)
            execute(module)
            if name in self._waiting:
                self._waiting.discard(name)
                _install(name, self._tape)

        return exec_module
