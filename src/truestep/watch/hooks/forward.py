"""Forward passes of outermost modules, and switches between training and evaluation.

Owns what "outermost" means: a module called from the user's loop, not by another one, not in a backward pass.
"""

import sys
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from truestep.watch.evidence.facts.passes import ForwardPass, ModelUsed, ModeSet
from truestep.watch.hooks.table import Observation, unseen, when_removed
from truestep.watch.script import module_tree
from truestep.watch.script.nested_tensors import is_transformed, outline
from truestep.watch.script.tape import Tape

_is_compiling, _is_tracing = torch.compiler.is_compiling, torch._C._is_tracing
_is_grad, _is_inference = torch.is_grad_enabled, torch.is_inference_mode_enabled


class Forward:
    """`Module.__call__`, `train` and `eval`."""

    def __init__(self, tape: Tape) -> None:
        self._tape, self._under_way = tape, tape.under_way
        self._chain = tape.chain
        self._models = tape.things("model")
        self._met: set[int] = set()
        self._is_switching = False

    def observe_call(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> Observation:
        """Observe the call of an outermost module."""
        tape, under_way, chain = self._tape, self._under_way, self._chain
        if "_forward_hooks" not in module.__dict__:
            return  # not set up: torch will say so
        if _is_compiling() or _is_tracing():
            return  # what is read of a tensor now becomes part of the trace
        tape.end_if_over()
        known = self._models.get(id(module))
        number = tape.number("model", module) if known is None else known[0]
        if number not in self._met:
            self._met.add(number)
            _introduce(tape, module, number)
        is_seen = not is_transformed()
        if chain is not None and is_seen:
            chain.take_inputs(module, (args, kwargs))
        is_grad, is_inference = _is_grad(), _is_inference()
        tensors = outline(args) if args else outline(kwargs)
        facts = ForwardPass(number, module_tree.is_training(module), is_grad, is_inference, tensors)
        under_way.forward_site = site = tape.sites.here(3)
        if is_seen:
            tape.emit("forward_begins", module, args, kwargs)
        under_way.is_inside = True
        begun = perf_counter_ns()
        try:
            result = yield
        finally:
            under_way.is_inside = False
        tape.mark(facts, site, begun)
        if is_seen:
            tape.emit("forward_ends", module, args, kwargs, result)

    def observe_train(self, module: nn.Module, mode: bool = True) -> Observation:
        """Observe a switch between training and evaluation; that of a module's parts belongs to it."""
        if self._is_switching:
            return
        facts, site = ModeSet(type(module).__qualname__, bool(mode)), self._tape.sites.here(3)
        self._is_switching = True
        begun = perf_counter_ns()
        try:
            yield
        finally:
            self._is_switching = False
        self._tape.mark(facts, site, begun)
        self._tape.observe_change("mode", site, bool(mode))


def watch_gradient_mode(tape: Tape) -> None:
    """Open a window where gradients are switched off at a line that has not done so often: an evaluation."""
    for kind in (torch.no_grad, torch.inference_mode):
        enter = kind.__enter__
        kind.__enter__ = _entering(tape, enter)  # type: ignore[method-assign]
        when_removed(partial(setattr, kind, "__enter__", enter))


def _entering(tape: Tape, original: Any) -> Any:
    window = tape.window
    others: set[Any] = set()
    """Code that is not the user's own."""

    def enter(self: Any) -> Any:
        if tape.is_on and not window.is_open:
            frame: Any = sys._getframe(1)
            if frame.f_code.co_name == "decorate_context":
                frame = frame.f_back
            code = frame.f_code
            if code not in others and tape.sites.is_own(code.co_filename):
                tape.observe_change("no_grad", code, frame.f_lasti)
            else:
                others.add(code)
        return original(self)

    return unseen(enter, original)


def allow_in_compiled_code() -> None:
    """Let the compiler take a module's call for torch's own: it would stop at ours, if a module has hooks."""
    call: Any = nn.Module.__call__
    original = getattr(call, "__wrapped__", None)
    if original is None:
        return
    call._torchdynamo_inline = original
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module: Any = sys.modules.get(name)
        if module is not None and hasattr(module, "unpatched_nn_module_call"):
            module.unpatched_nn_module_call = call


def _introduce(tape: Tape, module: nn.Module, number: int) -> None:
    try:
        parameters = list(module_tree.parameters(module))
    except Exception as error:  # noqa: BLE001 - a module of the user's may list anything; written down
        tape.note_trouble("a model that is called", error)
        parameters = []
    with tape.no_user_overrides():
        # A lazy module's parameters have no size before its first call.
        size = sum(0 if nn.parameter.is_lazy(item) else item.numel() for item in parameters)
    tape.note(ModelUsed(number, type(module).__qualname__, size))
