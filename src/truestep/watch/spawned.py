"""Processes that the script spawns, as `torch.multiprocessing.spawn` does: they are observed like the script.

Owns the command line of those processes. What loads data is left alone, and so is what is forked.
"""

import sys
from typing import Any

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

# As at the start of a script: what lies in the working folder must not stand in for what we import.
_CODE = (
    "import sys; path = list(sys.path); sys.flags.safe_path or sys.path.pop(0); "
    "from truestep.watch.spawned import join; join({settings!r}); sys.path[:] = path; del join, path; {code}"
)
_NOT_TRAINING = ("torch.utils.data", "multiprocessing", "concurrent", "joblib", "loky")


def watch_spawning(tape: Tape) -> None:
    """Have spawned processes observed, with the same plan and folder."""
    if not tape.plan.inspect:
        return
    starting: list[Any] = []
    wraps = Wraps()
    settings = {"folder": str(tape.path.parent), "plan": tape.plan.as_fields()}
    spawn: Any = sys.modules["multiprocessing.spawn"]
    process: Any = sys.modules["multiprocessing.process"]

    def make_start(start: Any) -> Any:
        def wrapper(self: Any) -> None:
            starting.append(self)
            try:
                start(self)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                starting.pop()

        return wrapper

    def make_words(get_words: Any) -> Any:
        def wrapper(**given: Any) -> Any:
            words = list(get_words(**given))
            if tape.is_on and starting and _may_train(starting[-1]) and "-c" in words:
                place = words.index("-c") + 1
                words[place] = _CODE.format(settings=settings, code=words[place])
            return words

        return wrapper

    wraps.put("start", make_start, process.BaseProcess)
    wraps.put("get_command_line", make_words, spawn)


def _may_train(process: Any) -> bool:
    where = getattr(getattr(process, "_target", None), "__module__", None) or ""
    return not where.startswith(_NOT_TRAINING)


def join(settings: dict[str, Any]) -> None:
    """Observe this process, before anything of the script's is imported."""
    from truestep.watch.arrival import expect  # noqa: PLC0415 - it waits for this module's own observer
    from truestep.watch.plan import Plan  # noqa: PLC0415

    expect(Tape(settings["folder"], Plan(**settings["plan"])))
