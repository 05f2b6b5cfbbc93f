"""What is saved, loaded, and put back into models, optimizers and schedulers.

Owns torch's own files, safetensors and NumPy's. What is stored is left to the chain of digests.
"""

import os
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]


def watch(tape: Tape, wraps: Wraps) -> None:
    """Observe torch's save and load, and every `load_state_dict`; NumPy's files, if digests are asked for."""
    modules = (torch.serialization, torch)
    wraps.put("save", lambda save: _wrap(save, tape, _saved("torch", place=1)), *modules)
    wraps.put("load", lambda load: _wrap(load, tape, _loaded), *modules)
    for what, kind in (("model", nn.Module), ("optimizer", Optimizer), ("scheduler", LRScheduler)):
        wraps.put("load_state_dict", lambda restore, what=what: _wrap_restore(restore, tape, what), kind)  # type: ignore[misc]
    for name in ("save", "savez", "savez_compressed", "savetxt") if tape.chain is not None else ():
        wraps.put(name, lambda save: _wrap(save, tape, _saved("numpy", place=0)), numpy)


def watch_safetensors(tape: Tape) -> None:
    """Observe files of safetensors, once they are used."""
    _watch_safetensors(tape, "safetensors.torch")


def watch_safetensors_arrays(tape: Tape) -> None:
    """Observe files of safetensors that are made of arrays."""
    _watch_safetensors(tape, "safetensors.numpy")


def _watch_safetensors(tape: Tape, name: str) -> None:
    if "files" not in tape.plan.families:
        return
    module, wraps = sys.modules[name], Wraps(tape)
    wraps.put("save_file", lambda save: _wrap(save, tape, _saved("safetensors", place=1)), module)
    wraps.put("load_file", lambda load: _wrap(load, tape, _read("safetensors")), module)


def watch_distributed(tape: Tape) -> None:
    """Observe checkpoints of torch.distributed, once they are used."""
    if "files" not in tape.plan.families:
        return
    module = sys.modules["torch.distributed.checkpoint"]
    wraps = Wraps(tape)
    for name in ("save", "async_save"):
        wraps.put(name, lambda save: _wrap(save, tape, _saved("distributed", place=None)), module)
    wraps.put("load", lambda load: _wrap(load, tape, _read("distributed", place=None)), module)


def _name(given: Any) -> str | None:
    try:
        return os.fspath(given) if not isinstance(given, int) else None
    except TypeError:  # an open file or a buffer
        return getattr(given, "name", None) if isinstance(getattr(given, "name", None), str) else None


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int | None) -> Any:
    if place is not None and len(args) > place:
        return args[place]
    return next(
        (kwargs[name] for name in ("f", "file", "fname", "filename", "checkpoint_id") if name in kwargs), None
    )


def _stored(how: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Any, Any]:
    """Return what is to be saved: all arguments, of which names of files hold no tensors."""
    if how == "numpy":
        given = [_as_array(item) for item in args[1:]]
        kwargs = {name: _as_array(item) for name, item in kwargs.items() if name not in ("file", "fname")}
    else:
        given = [item for item in args if not isinstance(item, str | os.PathLike)]
    if len(given) == 1 and type(given[0]) is dict:
        return {**given[0], **kwargs}
    return {**{"" if len(given) == 1 else index: item for index, item in enumerate(given)}, **kwargs}


def _as_array(value: Any) -> Any:
    """Return what NumPy makes of it before it saves it: an array also of a list of numbers."""
    return value if isinstance(value, torch.Tensor) else numpy.asanyarray(value)


def _saved(how: str, *, place: int | None) -> Function:
    return lambda args, kwargs: ("save", how, _name(_argument(args, kwargs, place)))


def _read(how: str, *, place: int | None = 0) -> Function:
    return lambda args, kwargs: ("load", how, _name(_argument(args, kwargs, place)), True)


def _loaded(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return ("load", "torch", _name(_argument(args, kwargs, 0)), kwargs.get("weights_only"))


def _wrap(act: Function, tape: Tape, describe: Function) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not tape.is_on:
            try:
                return act(*args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
        kind, *facts = describe(args, kwargs)
        key = (kind, tape.sites.here(), *facts)
        chain = tape.chain if kind == "save" else None
        digests = chain.digests_of_stored(lambda: _stored(facts[0], args, kwargs)) if chain else None
        begun = perf_counter_ns()
        try:
            result = act(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        tape.mark(key, begun, value=digests)
        return result

    return wrapper


def _wrap_restore(restore: Function, tape: Tape, what: str) -> Function:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not tape.is_on:
            try:
                return restore(self, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
        strict = (args[1] if len(args) > 1 else kwargs.get("strict", True)) if what == "model" else None
        key = ("restore", tape.sites.here(), what, type(self).__qualname__, strict)
        begun = perf_counter_ns()
        try:
            result = restore(self, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        tape.mark(key, begun, value=_mismatch(result))
        return result

    return wrapper


def _mismatch(result: Any) -> dict[str, list[str]] | None:
    missing, unexpected = getattr(result, "missing_keys", None), getattr(result, "unexpected_keys", None)
    if not missing and not unexpected:
        return None
    return {"missing": list(missing or ()), "unexpected": list(unexpected or ())}
