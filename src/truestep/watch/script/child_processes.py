"""Processes that the script starts, as `torch.multiprocessing.spawn` does: they are observed like the script.

Owns the command line of those that are spawned, and the return of those that are forked: of these only what
joins a process group is kept. What loads data is left alone. Where watching copies the process itself, what
the script registered for forks is not called; what Python, torch and we do at a fork is: it frees locks.
"""

import os
import sys
from typing import Any

from truestep.watch.evidence.facts.surroundings import GroupJoined
from truestep.watch.hooks.table import Function, Hook, Observation, calling_frame, drop_frames, put, unseen
from truestep.watch.script.tape import Tape

# As at the start of a script: what lies in the working folder must not stand in for what we import.
_CODE = (
    "import sys; path = list(sys.path); sys.flags.safe_path or sys.path.pop(0); "
    "from truestep.watch.script.child_processes import join; join({settings!r}); sys.path[:] = path; "
    "del join, path; {code}"
)
_LAST = -100
_NOT_TRAINING = ("torch.utils.data", "multiprocessing", "concurrent", "joblib", "loky")


def watch_spawning(tape: Tape) -> None:
    """Have started processes observed, with the same plan and folder."""
    if tape.plan.inspect and not tape.is_part:
        started = _Started(tape)
        sys.modules["multiprocessing.util"].register_after_fork(tape, started.rejoin)
        put(tape, HOOKS, started)


class _Started:
    """Processes that are forked before a step was made write on, each into a record of its own."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._starting: list[Any] = []
        self._num_bytes = 0
        """How long the parent's record was as the last one was started."""

    def observe_start(self, process: Any) -> Observation:
        """Observe the start of a process."""
        tape = self._tape
        self._starting.append(process)
        if not tape.num_steps and _may_train(process):
            tape.flush()
            self._num_bytes = tape.path.stat().st_size if tape.path.exists() else 0
        try:
            yield
        finally:
            self._starting.pop()

    def observe_words(self, **_: Any) -> Observation:
        """Let a process that is spawned be observed first."""
        words = list((yield))
        if not self._starting or not _may_train(self._starting[-1]) or "-c" not in words:
            return None
        settings = {"folder": str(self._tape.path.parent), "plan": self._tape.plan.as_fields()}
        place = words.index("-c") + 1
        words[place] = _CODE.format(settings=settings, code=words[place])
        return words

    def rejoin(self, tape: Tape) -> None:
        multiprocessing: Any = sys.modules["multiprocessing"]
        is_left = self._num_bytes and not tape.is_on and not tape.num_steps
        if is_left and _may_train(multiprocessing.process.current_process()):
            tape.rejoin(self._num_bytes)
            multiprocessing.util.Finalize(None, self._end, exitpriority=_LAST)

    def _end(self) -> None:
        """One that has trained alone is none of a run's replicas and leaves nothing."""
        self._tape.close()
        if not self._tape.has(GroupJoined):
            self._tape.path.unlink(missing_ok=True)


HOOKS = (
    Hook("multiprocessing.process.BaseProcess.start", _Started.observe_start),
    Hook("multiprocessing.spawn.get_command_line", _Started.observe_words),
)


def _may_train(process: Any) -> bool:
    where = getattr(getattr(process, "_target", None), "__module__", None) or ""
    return not where.startswith(_NOT_TRAINING)


def join(settings: dict[str, Any]) -> None:
    """Observe this process, before anything of the script's is imported."""
    from truestep.watch.plan import Plan  # noqa: PLC0415
    from truestep.watch.script.import_hooks import expect  # noqa: PLC0415 - it waits for this module's own observer

    expect(Tape(settings["folder"], Plan(**settings["plan"])))


def watch_os(tape: Tape) -> None:
    """Observe what is registered to be called at a fork, and an end that runs no `atexit`."""
    if not tape.is_part:
        put(tape, [Hook("os._exit", _ends, given=(tape,))])
    if tape.plan.inspect and hasattr(os, "register_at_fork"):
        put(tape, [Hook("os.register_at_fork", _register, given=(tape,), changes=True)])


def _ends(tape: Tape, *_: Any) -> None:
    tape.close()


def _register(tape: Tape, register: Function, /, **given: Any) -> Any:
    caller = calling_frame()
    if caller is None or not tape.sites.is_engine(caller.f_code.co_filename):
        given = {name: _unless_copying(act, tape) if callable(act) else act for name, act in given.items()}
    return register(**given)


def _unless_copying(act: Function, tape: Tape) -> Function:
    def wrapper() -> None:
        if not tape.under_way.is_copying:
            try:
                act()
            except BaseException as error:
                drop_frames(error)
                raise

    return unseen(wrapper, act)
