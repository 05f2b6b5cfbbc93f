"""Variation on purpose: another number of loader workers, settings, and a kill after so many steps.

Owns what a plan changes in the script to see whether its result depends on it. Compares nothing.
"""

import inspect
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from truestep.watch.scratch import COPIED
from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]
_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
_NEED_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
"""Options that a loader without workers refuses."""


def vary_torch(tape: Tape, wraps: Wraps) -> None:
    """Build DataLoaders with the plan's number of workers, and kill this process as the plan says."""
    if tape.plan.workers is not None:
        loader = sys.modules["torch"].utils.data.DataLoader
        wraps.put("__init__", lambda init: _wrap_init(init, tape.plan.workers), loader)
    if tape.plan.kill_at is not None:
        tape.on_step = lambda: _kill(tape)
    for where, value in tape.plan.settings:
        module, function = where.split(":")
        getattr(import_module(module), function)(value, tape)


def vary_stateful(tape: Tape) -> None:
    """Build torchdata's loaders with the plan's number of workers too."""
    if tape.plan.workers is not None:
        loader = sys.modules[_STATEFUL].StatefulDataLoader
        Wraps().put("__init__", lambda init: _wrap_init(init, tape.plan.workers), loader)


def vary_loader(tape: Tape) -> None:
    """Build our own loaders with the plan's number of workers; the DataLoader in one is left as it is."""
    if tape.plan.workers is not None:
        loader = sys.modules["truestep.data.loader"].Loader
        Wraps().put("__init__", lambda init: _wrap_init(init, tape.plan.workers, name="workers"), loader)


def vary_run(tape: Tape) -> None:
    """Let runs of ours begin anew in a copied folder: one that is finished would make no step.

    Their settings (`truestep.toml`) leave the number of workers to the plan, if it has one.
    """
    module = sys.modules["truestep.train.run"]
    Wraps().put("_claim", _wrap_claim, module.Run)
    if tape.plan.workers is not None:
        for name in ("find_settings", "read_settings"):
            Wraps().put(name, _wrap_settings, module)
    tape.tell("run_arrives", module.Run)


def _wrap_settings(find: Function) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            found = find(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        values = {name: value for name, value in found.values.items() if name != "workers"}
        return replace(found, values=values)

    return wrapper


def _wrap_claim(claim: Function) -> Function:
    def wrapper(self: Any) -> Any:
        mark = self.folder / COPIED
        if mark.is_file():
            shutil.rmtree(self.folder / "snapshots", ignore_errors=True)
            for name in ("record.jsonl", "lock"):  # in a copy of many files these may be links
                (self.folder / name).unlink(missing_ok=True)
            mark.unlink()  # started once more, after a kill, it goes on
        return claim(self)

    return wrapper


def _wrap_init(init: Function, num_workers: int | None, *, name: str = "num_workers") -> Function:
    signature = inspect.signature(init)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        try:
            given = signature.bind(self, *args, **kwargs)
        except TypeError:
            given = None  # a wrong call: the loader itself says so
        is_inner = sys._getframe(1).f_globals.get("__name__") == "truestep.data.workers"
        if given is not None and not is_inner:
            given.arguments[name] = num_workers
            if num_workers == 0:
                for needless in _NEED_WORKERS:
                    given.arguments.pop(needless, None)
            args, kwargs = given.args[1:], given.kwargs
        try:
            init(self, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return __init__


def _kill(tape: Tape) -> None:
    """End this process as the machine would: no handler runs, what is buffered is lost."""
    if tape.num_steps == tape.plan.kill_at and _is_first():
        tape.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def _is_first() -> bool:
    """Whether this is the process to kill: of a group only the first, its launcher ends the others."""
    group = sys.modules["torch"].distributed
    return not (group.is_available() and group.is_initialized()) or bool(group.get_rank() == 0)
