"""States of models: taken, kept while training goes on, put back, saved and read from files.

Owns the link between them. Tensors are known by their identity and weakly; no value is read.
"""

import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.evidence.facts.structure import (
    CheckpointLoaded,
    ModelRefilled,
    OptimizerNotResumed,
    StateSaved,
    TakenState,
)
from truestep.watch.hooks.table import UNSEEN, Hook, Observation, put
from truestep.watch.script import module_tree
from truestep.watch.script.refs import ByIdentity, Ref
from truestep.watch.script.tape import Tape

_MAX_TENSORS = 1024
_MAX_NAMES = 6
_MAX_DEPTH = 4
_MAX_ITEMS = 4096
_MAX_FILLED = 64


def watch(tape: Tape) -> None:
    """Follow states of models, and files."""
    states = _States(tape)
    tape.listen(states, "step_begins", "step_ends", close_look=True)  # a first step is one after a change
    put(tape, _HOOKS, states)


@dataclass
class _Taken:
    """A state as `state_dict` returned it."""

    number: int
    site: int
    step: int


@dataclass
class _Filled:
    """A model that got all its values from a file."""

    ref: "weakref.ref[nn.Module]"
    site: int
    file: CheckpointLoaded
    parameters: set[int] = field(default_factory=set)


class _Known:
    """Tensors by their ids, each with where it is from, and the count of writes to it then."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], Any, int | None]] = {}

    def add(self, tensor: Tensor, origin: Any) -> None:
        key = id(tensor)
        ref = Ref(tensor, lambda _: self._known.pop(key, None))
        self._known[key] = (ref, origin, _version(tensor))

    def find(self, tensor: Tensor) -> tuple[Any, bool] | None:
        """Return where a tensor is from and whether it was written to since."""
        known = self._known.get(id(tensor))
        if known is None or known[0]() is not tensor:
            return None
        return known[1], known[2] != _version(tensor)


class _States:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._taken = _Known()
        self._from_file = _Known()
        self._num_taken = 0
        self._is_taking = False
        self._takes: dict[int, dict[int, _Taken]] = {}
        """By the address of a state's first tensor: the first state that each line has taken."""
        self._filled: list[_Filled] = []
        self._met = ByIdentity[Optimizer, bool]()
        self._fresh: list[tuple[_Filled, int]] = []

    def observe_take(self, /, *_: Any, **__: Any) -> Observation:
        """Observe `state_dict`; that of a module's parts belongs to it."""
        if self._is_taking:
            return
        self._is_taking = True
        try:
            result = yield
        finally:
            self._is_taking = False
        self._tape.call_listener(self._take, result)

    def observe_put(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> Observation:
        """Observe `load_state_dict`."""
        state = args[0] if args else kwargs.get("state_dict")
        strict = args[1] if len(args) > 1 else kwargs.get("strict", True)
        given: list[tuple[ModelRefilled, CheckpointLoaded | None]] = []  # a load may cause another one
        self._tape.call_listener(self._give, module, state, bool(strict), given)
        result = yield
        for facts, file in given:
            self._tape.call_listener(self._put, module, result, facts, file)

    def observe_save(self, /, *args: Any, **kwargs: Any) -> None:
        """Observe `torch.save`."""
        self._tape.call_listener(self._store, args[0] if args else kwargs.get("obj"))

    def observe_load(self, /, *_: Any, **__: Any) -> Observation:
        """Observe `torch.load`."""
        result = yield
        self._tape.call_listener(self._open, result)

    def _take(self, state: Any) -> None:
        taken = _Taken(self._num_taken, self._tape.sites.here(2), self._tape.num_steps)
        self._num_taken += 1
        for place, (_, tensor) in enumerate(_tensors_of(state)):
            self._taken.add(tensor, taken)
            if not place:
                self._takes.setdefault(tensor.data_ptr(), {}).setdefault(taken.site, taken)

    def _give(self, module: nn.Module, state: Any, strict: bool, given: list[Any]) -> None:
        """Add with what a model is about to be filled, and from which file."""
        memory = {item.data_ptr() for item in _own_tensors(module)}
        num_tensors = num_own = num_written = 0
        takens: dict[int, _Taken] = {}
        file: CheckpointLoaded | None = None
        for _, tensor in _tensors_of(state):
            num_tensors += 1
            num_own += tensor.data_ptr() in memory and tensor.numel() > 0
            found = self._taken.find(tensor)
            if found is not None:
                takens[found[0].number] = found[0]
                num_written += found[1]
            source = self._from_file.find(tensor)
            if source is not None:
                file = source[0]
        before: list[_Taken] = []
        if num_own and not takens:  # its own memory through other tensors, as detach() makes them
            first = next((tensor.data_ptr() for _, tensor in _tensors_of(state)), 0)
            before = [
                item for item in self._takes.get(first, {}).values() if item.step < self._tape.num_steps
            ]
        facts = ModelRefilled(
            model=self._tape.number("model", module),
            class_name=type(module).__qualname__,
            is_strict=strict,
            num_keys=len(state) if isinstance(state, Mapping) else num_tensors,
            num_tensors=num_tensors,
            num_own=num_own,
            num_written=num_written,
            num_missing=0,
            num_unexpected=0,
            missing=[],
            unexpected=[],
            taken=self._fact(takens[min(takens)]) if takens else None,
            taken_before=[self._fact(item) for item in before[-_MAX_NAMES:]],
        )
        given.append((facts, file))

    def _fact(self, taken: _Taken) -> TakenState:
        return TakenState(taken.number, self._tape.sites.table[taken.site], taken.step)

    def _put(
        self, module: nn.Module, result: Any, facts: ModelRefilled, file: CheckpointLoaded | None
    ) -> None:
        missing = list(getattr(result, "missing_keys", ()) or ())
        unexpected = list(getattr(result, "unexpected_keys", ()) or ())
        facts = facts._replace(
            num_missing=len(missing),
            num_unexpected=len(unexpected),
            missing=missing[:_MAX_NAMES],
            unexpected=unexpected[:_MAX_NAMES],
        )
        site = self._tape.sites.here(2)
        self._tape.mark(facts, site, perf_counter_ns())
        if file is not None and not missing and not unexpected:
            ids = {id(item) for item in module_tree.parameters(module)}
            before = [item for item in self._filled if item.ref() not in (None, module)]
            self._filled = [*before[1 - _MAX_FILLED :], _Filled(weakref.ref(module), site, file, ids)]

    def step_begins(self, optimizer: Optimizer, number: int) -> None:
        if optimizer in self._met:
            return
        self._met[optimizer] = True
        self._fresh = []
        if self._filled and not optimizer.state:
            own = {id(item) for group in optimizer.param_groups for item in group["params"]}
            for filled in self._filled:
                if filled.ref() is not None and own and own <= filled.parameters:
                    self._fresh.append((filled, number))

    def step_ends(self, optimizer: Optimizer, _number: int) -> None:
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, []
        kept = sorted(_kept_names(optimizer))
        for filled, number in fresh:
            facts = OptimizerNotResumed(number, type(optimizer).__qualname__, kept, filled.file)
            self._tape.mark(facts, filled.site, perf_counter_ns())

    def _store(self, thing: Any) -> None:
        modules, num_written = [], 0
        taken: TakenState | None = None
        for item in _walk(thing):
            if isinstance(item, nn.Module):
                modules.append(type(item).__qualname__)
            elif isinstance(item, Tensor):
                found = self._taken.find(item)
                if found is not None and found[1]:
                    taken = self._fact(found[0])
                    num_written += 1
        is_script = any(isinstance(item, torch.jit.ScriptModule) for item in _walk(thing))
        if (modules and not is_script) or taken is not None:
            self._tape.note(StateSaved(modules[:_MAX_NAMES], num_written, taken, _is_direct(self._tape)))

    def _open(self, thing: Any) -> None:
        items = list(_walk(thing))
        facts = CheckpointLoaded(
            keys=[key for key in thing if isinstance(key, str)][:64] if isinstance(thing, dict) else [],
            num_optimizers=sum(_is_optimizers(item) for item in items),
        )
        for item in items:
            if isinstance(item, Tensor):
                self._from_file.add(item, facts)
        self._tape.note(facts)


def _is_optimizers(item: Any) -> bool:
    """Whether it is the state of an optimizer that has made steps."""
    return isinstance(item, dict) and "param_groups" in item and bool(item.get("state"))


def _kept_names(optimizer: Optimizer) -> set[str]:
    """Return what an optimizer keeps for each parameter besides the count of its steps."""
    found = set()
    for state in list(optimizer.state.values())[:_MAX_NAMES]:
        if isinstance(state, dict):
            found |= {name for name, value in state.items() if value is not None and name != "step"}
    return {str(name) for name in found}


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _is_plain(item: Any) -> bool:
    """Whether it is a tensor with memory of its own."""
    if type(item) not in (Tensor, nn.Parameter):
        return False
    return bool(item.layout == torch.strided and item.device.type != "meta")


def _own_tensors(module: nn.Module) -> Iterator[Tensor]:
    for item in module_tree.parameters(module):
        if _is_plain(item) and item.numel():
            yield item


def _tensors_of(state: Any) -> Iterator[tuple[str, Tensor]]:
    if not isinstance(state, dict):
        return
    num = 0
    for name, value in dict.items(state):
        if _is_plain(value):
            yield str(name), value
            num += 1
            if num >= _MAX_TENSORS:
                return


def _walk(thing: Any) -> Iterator[Any]:
    """Yield a thing and what lies in it, as far as containers go."""
    left = [(thing, 0)]
    num = 0
    while left and num < _MAX_ITEMS:
        item, depth = left.pop()
        num += 1
        yield item
        if depth < _MAX_DEPTH:
            if isinstance(item, dict):
                left.extend((value, depth + 1) for value in dict.values(item))
            elif isinstance(item, list | tuple | set):
                left.extend((value, depth + 1) for value in item)


def _is_direct(tape: Tape) -> bool:
    """Whether the user's own code called, and no package between."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != UNSEEN and not str(frame.f_globals.get("__name__")).startswith("truestep."):
            return tape.sites.is_own(name)
        frame = frame.f_back
    return False


_HOOKS = (
    Hook("torch.nn.Module.state_dict", _States.observe_take),
    Hook("torch.nn.Module.load_state_dict", _States.observe_put),
    Hook("torch.serialization.save", _States.observe_save, also=("torch.save",)),
    Hook("torch.serialization.load", _States.observe_load, also=("torch.load",)),
)
