"""How training is set up: what is compiled or made parallel, the number of threads.

Owns the calls that say so. What follows from them is seen in the digests.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]
_SHARDING = "torch.distributed.fsdp._fully_shard._fully_shard"


def watch(tape: Tape, wraps: Wraps) -> None:
    """Observe `torch.compile` (a module's `compile` calls it), DDP, and torch's global switches."""
    wraps.put("compile", _noting(tape, "compile", _compiled), torch)
    wraps.put("set_num_threads", _noting(tape, "threads", _first), torch)
    if torch.distributed.is_available():
        parallel = torch.nn.parallel.DistributedDataParallel
        wraps.put("__init__", _noting(tape, "parallel", lambda *_, **__: "DistributedDataParallel"), parallel)
    together = torch.nn.DataParallel
    wraps.put("__init__", _noting(tape, "parallel", lambda *_, **__: "DataParallel"), together)


def watch_sharding(tape: Tape) -> None:
    """Observe `fully_shard`."""
    if "setup" in tape.plan.families:
        module = sys.modules[_SHARDING]
        Wraps(tape).put("fully_shard", _noting(tape, "parallel", lambda *_, **__: "fully_shard"), module)


def _noting(tape: Tape, kind: str, fact_of: Function) -> Callable[[Function], Function]:
    def make(act: Function) -> Function:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if tape.is_on and not _is_torch(sys._getframe(2).f_globals.get("__name__") or ""):
                fact = fact_of(*args, **kwargs)
                if fact is not None:
                    tape.note(kind, fact)
            try:
                return act(*args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise

        return wrapper

    return make


def _is_torch(caller: str) -> bool:
    """Whether torch calls itself: what its compiler switches and puts back says nothing about the script."""
    return caller.startswith("torch.") and caller != "torch.nn.modules.module"


def _compiled(model: Any = None, **_: Any) -> str | None:
    """Name what is compiled; nothing yet for a decorator with arguments, which calls again with it."""
    if model is None:
        return None
    owner = getattr(model, "__self__", model)
    if isinstance(owner, torch.nn.Module):
        return type(owner).__qualname__
    return str(getattr(model, "__qualname__", type(model).__qualname__))


def _first(*args: Any, **kwargs: Any) -> Any:
    return next(iter((*args, *kwargs.values())), None)
