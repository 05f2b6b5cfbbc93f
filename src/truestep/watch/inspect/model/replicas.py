"""Ranks of a job: calls that pass a parallel wrapper by, and weights that drift apart.

Owns what is noted where a process group exists. Other processes are asked nothing: rules compare.
"""

import sys
import weakref
from dataclasses import dataclass
from time import perf_counter_ns
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.digests.fold import fold
from truestep.watch.evidence.facts.surroundings import (
    BESIDE,
    UNWRAPPED,
    ReplicaDigested,
    WrapperBypassed,
)
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.script import module_tree
from truestep.watch.script.tape import Tape

_EVENTS = ("forward_begins", "backward_ends", "step_begins", "step_ends")


def watch(tape: Tape) -> None:
    """Observe DDP's wrappers and what they hold."""
    if not torch.distributed.is_available():
        return
    replicas = _Replicas(tape)
    tape.listen(replicas, *_EVENTS, close_look=True)
    put(tape, [Hook("torch.nn.parallel.DistributedDataParallel.__init__", _Replicas.made)], replicas)


@dataclass
class _Wrapper:
    """A model that was wrapped, and how it was called since its optimizer's last step."""

    ref: "weakref.ref[nn.Module]"
    parts: set[int]
    """Ids of its modules."""
    parameters: set[int]
    num_calls: int = 0
    passed_by: int | None = None
    """The first line that called the model itself with gradients on."""
    part: str = ""
    has_backward: bool = False


class _Replicas:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._wrappers: list[_Wrapper] = []
        self._owned: dict[tuple[int, int], bool] = {}
        self._begun: dict[int, dict[str, str]] = {}
        """By optimizer: digests, before its first step, of its parameters beside the wrapped ones."""
        self._gradients: str | None = None
        """A digest of the gradients that a step is about to apply."""

    def made(self, wrapper: nn.Module, /, *_: Any, **__: Any) -> Observation:
        """A wrapper is made."""
        yield
        self._tape.call_listener(self._meet, wrapper)

    def _meet(self, wrapper: nn.Module) -> None:
        inner: Any = getattr(wrapper, "module", None)
        if isinstance(inner, nn.Module):
            if not self._wrappers:  # from here on every call counts
                self._tape.ignore(*(getattr(self, event) for event in _EVENTS))
                self._tape.listen(self, *_EVENTS)
            inside = {id(module) for module in module_tree.modules(inner)}
            self._wrappers.append(
                _Wrapper(weakref.ref(wrapper), inside, {id(item) for item in module_tree.parameters(inner)})
            )

    def forward_begins(self, module: nn.Module, _args: Any, _kwargs: Any) -> None:
        for known in self._wrappers:
            wrapper = known.ref()
            if wrapper is None:
                continue
            if id(module) in known.parts:
                if _is_inside(wrapper):  # `wrapper.forward(x)` prepares the exchange as a call does
                    known.num_calls += 1
                elif torch.is_grad_enabled() and module_tree.is_training(module) and known.passed_by is None:
                    known.passed_by = self._tape.sites.here(1)
                    known.part = type(module).__qualname__
            elif module is wrapper or self._holds(module, wrapper):
                known.num_calls += 1

    def _holds(self, module: nn.Module, wrapper: nn.Module) -> bool:
        """Whether a wrapper is called as a part of a larger module."""
        key = (id(module), id(wrapper))
        if key not in self._owned:
            self._owned[key] = any(item is wrapper for item in module_tree.modules(module))
        return self._owned[key]

    def backward_ends(self, _losses: tuple[Tensor, ...], _how: str) -> None:
        for known in self._wrappers:
            known.has_backward = True

    def step_begins(self, optimizer: Optimizer, number: int) -> None:
        self._gradients = None
        if self._tape.is_looked_at and _has_others():
            gradients = [item.grad for item in _parameters(optimizer) if item.grad is not None]
            if gradients and all(map(_is_whole, gradients)):
                self._gradients = fold([("", item) for item in gradients])
            if number not in self._begun:
                self._begun[number] = _digests(self._beside(optimizer))
        for known in self._wrappers:
            if not self._is_owned(known, optimizer, number):
                continue
            if known.passed_by is not None and not known.num_calls and known.has_backward:
                facts = WrapperBypassed(number, known.part)
                self._tape.mark(facts, known.passed_by, perf_counter_ns())
            known.num_calls, known.passed_by, known.has_backward = 0, None, False

    def _is_owned(self, known: _Wrapper, optimizer: Optimizer, number: int) -> bool:
        key = (id(known), number)
        if key not in self._owned:
            own = {id(item) for item in _parameters(optimizer)}
            self._owned[key] = bool(own & known.parameters)
        return self._owned[key]

    def step_ends(self, optimizer: Optimizer, number: int) -> None:
        if not self._tape.is_looked_at or not _has_others():
            return
        is_wrapped = False
        for place, known in enumerate(self._wrappers):
            wrapper = known.ref()
            if wrapper is not None and self._is_owned(known, optimizer, number):
                is_wrapped = True
                if not _has_hook(wrapper) and not _is_in_group(wrapper):
                    self._note(number, place, list(module_tree.named_parameters(wrapper)))
        if self._gradients is not None and (beside := self._beside(optimizer)):
            self._note(number, BESIDE if is_wrapped else UNWRAPPED, beside)

    def _beside(self, optimizer: Optimizer) -> list[tuple[str, Tensor]]:
        """Return an optimizer's parameters that no wrapper holds."""
        inside = {key for known in self._wrappers if known.ref() is not None for key in known.parameters}
        every = enumerate(_parameters(optimizer))
        return [(f"parameter {place}", item) for place, item in every if id(item) not in inside]

    def _note(self, number: int, wrapper: int, named: list[tuple[str, Tensor]]) -> None:
        first = self._begun.get(number, {}) if wrapper in (BESIDE, UNWRAPPED) else {}
        self._tape.note(ReplicaDigested(number, wrapper, _digests(named), self._gradients, first))


def _digests(named: list[tuple[str, Tensor]]) -> dict[str, str]:
    return {name: fold([(name, item)]) for name, item in named if _is_whole(item)}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [item for group in optimizer.param_groups for item in group["params"]]


def _has_others() -> bool:
    dist = torch.distributed
    return dist.is_initialized() and dist.get_world_size() > 1


def _has_hook(wrapper: nn.Module) -> bool:
    """Whether replicas are averaged in another way: then they may differ for a while on purpose."""
    return bool(getattr(wrapper, "_comm_hooks", None))


def _is_in_group(wrapper: nn.Module) -> bool:
    """Whether some ranks have no part in it: they may train another model."""
    group: Any = getattr(wrapper, "process_group", None)
    return group is not None and group.size() < torch.distributed.get_world_size()


def _is_whole(item: Tensor) -> bool:
    return type(item) in (Tensor, nn.Parameter) and item.layout == torch.strided


def _is_inside(owner: nn.Module) -> bool:
    """Whether the `forward` of a module is under way, called directly or not."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "forward" and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False
