"""Variation on purpose: another number of loader workers, settings, and a kill after so many steps.

Owns what a plan changes in the script to see whether its result depends on it. Compares nothing.
"""

import os
import shutil
import signal
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from truestep.watch.hooks.table import Function, Hook, bound, calling_module, put
from truestep.watch.launch.scratch import COPIED
from truestep.watch.script.tape import Tape

_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
_NEED_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
"""Options that a loader without workers refuses."""


def vary_torch(tape: Tape) -> None:
    """Build DataLoaders with the plan's number of workers, and kill this process as the plan says."""
    _vary_workers(tape, "torch.utils.data.DataLoader")
    if tape.plan.kill_at is not None:
        tape.follow_steps(partial(_kill, tape))
    for where, value in tape.plan.settings:
        module, function = where.split(":")
        getattr(import_module(module), function)(value, tape)


def vary_stateful(tape: Tape) -> None:
    """Build torchdata's loaders with the plan's number of workers too."""
    _vary_workers(tape, f"{_STATEFUL}.StatefulDataLoader")


def vary_loader(tape: Tape) -> None:
    """Build our own loaders with the plan's number of workers; the DataLoader in one is left as it is."""
    _vary_workers(tape, "truestep.run.data.loader.Loader", name="workers")


def vary_run(tape: Tape) -> None:
    """Let runs of ours begin anew in a copied folder: one that is finished would make no step.

    Their settings (`truestep.toml`) leave the number of workers to the plan, if it has one.
    """
    changes: dict[str, Function] = {"Run._claim": _begin_anew}
    if tape.plan.workers is not None:
        changes["find_settings"] = _without_workers
    home = "truestep.run.train.run"
    put(tape, [Hook(f"{home}.{name}", act, changes=True) for name, act in changes.items()])
    tape.emit("run_arrives", sys.modules[home].Run)


def _without_workers(find: Function, /) -> Any:
    found = find()
    return replace(found, values={name: value for name, value in found.values.items() if name != "workers"})


def _begin_anew(claim: Function, run: Any) -> Any:
    mark = run.folder / COPIED
    if mark.is_file():
        shutil.rmtree(run.folder / "snapshots", ignore_errors=True)
        for name in ("record.jsonl", "lock"):  # in a copy of many files these may be links
            (run.folder / name).unlink(missing_ok=True)
        mark.unlink()  # started once more, after a kill, it goes on
    return claim(run)


def _vary_workers(tape: Tape, loader: str, *, name: str = "num_workers") -> None:
    num_workers = tape.plan.workers
    if num_workers is not None:
        given = (name, num_workers)
        put(tape, [Hook(f"{loader}.__init__", _make, given=given, changes=True)])


def _make(name: str, num_workers: int, init: Function, loader: Any, /, *args: Any, **kwargs: Any) -> None:
    given = bound(init, (loader, *args), kwargs)
    if given is not None and calling_module() != "truestep.run.data.workers":
        given.arguments[name] = num_workers
        if num_workers == 0:
            for needless in _NEED_WORKERS:
                given.arguments.pop(needless, None)
        args, kwargs = given.args[1:], given.kwargs
    init(loader, *args, **kwargs)


def _kill(tape: Tape) -> None:
    """End this process as the machine would: no handler runs, what is buffered is lost."""
    if tape.num_steps == tape.plan.kill_at and _is_first():
        tape.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def _is_first() -> bool:
    """Whether this is the process to kill: of a group only the first, its launcher ends the others."""
    group = sys.modules["torch"].distributed
    return not (group.is_available() and group.is_initialized()) or bool(group.get_rank() == 0)
