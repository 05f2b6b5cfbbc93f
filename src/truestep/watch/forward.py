"""Forward passes of outermost modules, and switches between training and evaluation.

Owns what "outermost" means: a module called from the user's loop, not by another one, not in a backward pass.
"""

import sys
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from truestep.watch import parts
from truestep.watch.chain import Chain
from truestep.watch.leaves import is_transformed, outline
from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]


def watch(tape: Tape, chain: Chain | None, wraps: Wraps) -> None:  # limits: private to this package
    """Observe `Module.__call__`, `train` and `eval`."""
    call = vars(nn.Module).get("__call__")
    wraps.put("__call__", lambda call: _wrap_call(call, tape, chain), nn.Module)
    if call is not None:  # the compiler goes through the call of a module with hooks, and would stop at ours
        vars(nn.Module)["__call__"]._torchdynamo_inline = call
    wraps.put("train", lambda train: _wrap_train(train, tape), nn.Module)
    _tell_compiler()


def _tell_compiler() -> None:
    """Let the compiler take a module's call for torch's own, as it does if it is imported after this."""
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module: Any = sys.modules.get(name)
        if module is not None and hasattr(module, "unpatched_nn_module_call"):
            module.unpatched_nn_module_call = nn.Module.__call__


def _wrap_call(call: Function, tape: Tape, chain: Chain | None) -> Function:
    is_grad_enabled, is_inference = torch.is_grad_enabled, torch.is_inference_mode_enabled
    sites, get_thread = tape.sites, threading.get_ident
    is_compiling, is_tracing = torch.compiler.is_compiling, torch._C._is_tracing
    models, met = tape.things("model"), set[int]()
    begins, ends = tape.listeners["forward_begins"], tape.listeners["forward_ends"]

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - its name in tracebacks
        if (
            tape.is_inside  # all that nested modules pay is this and one more call
            or is_compiling()
            or not tape.is_on
            or is_tracing()  # what is read of a tensor then becomes part of the trace
            or not (get_thread() == tape.thread or tape.claim())
            or "_forward_hooks" not in self.__dict__  # not set up: torch will say so
        ):
            try:
                return call(self, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
        if tape.is_over:
            tape.end_script()
        known = models.get(id(self))
        number = tape.number("model", self) if known is None else known[0]
        if number not in met:
            met.add(number)
            _introduce(tape, self, number)
        is_told = not is_transformed()
        if chain is not None and is_told:
            chain.take_inputs(self, (args, kwargs))
        key = (
            "forward",
            sites.here(),
            number,
            self.training,
            is_grad_enabled(),
            is_inference(),
            outline(args) if args else outline(kwargs),
        )
        tape.forward_site = key[1]
        if begins and is_told:
            tape.tell("forward_begins", self, args, kwargs)
        tape.is_inside = True
        begun = perf_counter_ns()
        try:
            result = call(self, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            tape.is_inside = False
        tape.mark(key, begun)
        if ends and is_told:
            tape.tell("forward_ends", self, args, kwargs, result)
        return result

    return __call__


def _introduce(tape: Tape, module: nn.Module, number: int) -> None:
    try:
        parameters = list(parts.parameters(module))
        num_buffers = sum(1 for _ in parts.buffers(module))
    except Exception as error:  # noqa: BLE001 - a module of the user's may list anything; written down
        tape.note_trouble("a model that is called", error)
        parameters, num_buffers = [], 0
    with tape.among_ourselves():
        # A lazy module's parameters have no size before its first call.
        sizes = [0 if nn.parameter.is_lazy(item) else item.numel() for item in parameters]
        trainable = sum(size for size, item in zip(sizes, parameters, strict=True) if item.requires_grad)
    tape.note("model", number, type(module).__qualname__, sum(sizes), trainable, num_buffers)


def _wrap_train(train: Function, tape: Tape) -> Function:
    switching = False

    def wrapper(self: Any, mode: bool = True) -> Any:
        nonlocal switching
        if switching or tape.is_inside or not tape.is_on:
            try:
                return train(self, mode)
            except BaseException as error:
                drop_frame(error)
                raise
        key = ("mode", tape.sites.here(), type(self).__qualname__, bool(mode))
        switching = True
        begun = perf_counter_ns()
        try:
            result = train(self, mode)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            switching = False
        tape.mark(key, begun)
        return result

    return wrapper
