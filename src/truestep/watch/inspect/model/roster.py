"""The roster of parameters: who holds them, which optimizer moves them, whether gradients ever reach them.

Owns the book that is written down when the script ends. Values are read at the steps that are looked at.
"""

import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.evidence.facts.structure import Group, HidingPlace, Parameter, ParametersListed
from truestep.watch.evidence.facts.structure import Optimizer as ListedOptimizer
from truestep.watch.evidence.kinds import Facts, Place
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.inspect.model import norms
from truestep.watch.inspect.model.structure import (
    file_of,
    find_hidden,
    find_repeated,
    find_switches,
    origin_of,
)
from truestep.watch.inspect.training import updates
from truestep.watch.inspect.training.closeness import Closeness
from truestep.watch.inspect.training.flow import GradientFlow, follow
from truestep.watch.script import module_tree
from truestep.watch.script.nested_tensors import has_value
from truestep.watch.script.refs import Ref
from truestep.watch.script.tape import Tape

_MAX_WRITTEN = 4000
_MAX_PAGES = 64
_NUM_SAMPLED = 16
_FIRST_COMPARED = 8
_MAX_MODULES = 20_000


def watch(tape: Tape) -> None:
    """Keep the roster, and what else is looked at where structure has changed."""
    closeness = Closeness(tape)
    roster = _Roster(tape, closeness)
    tape.listen(roster, "forward_begins", "step_begins", "step_ends", "closing")
    tape.listen(roster, "backward_begins", "backward_ends", "counted", close_look=True)
    put(tape, _HOOKS, roster)
    norms.watch(tape, closeness)
    updates.watch(tape, closeness)


@dataclass(slots=True)
class _Entry:
    """What is known of one parameter: what `Parameter` says of it, and more."""

    key: int
    """Its id, for as long as it lives."""
    ref: "weakref.ref[Tensor] | None"
    shape: tuple[int, ...]
    sample: list[float] | None
    first_step: int
    path: str | None = None
    model: int | None = None
    size: int = 0
    """How many parameters that model has."""
    holder: str | None = None
    origin: str | None = None
    is_training: bool = True
    hidden: HidingPlace | None = None
    groups: dict[int, int] = field(default_factory=dict)
    is_frozen: bool = False
    is_loaded: bool = False
    is_changed: bool = False
    has_grad: bool = False
    num_passes: int = 0
    num_alone: int = 0
    is_beside: bool = False
    share: float = 0.0
    num_steps: int = 0
    num_lost: int = 0
    last_step: int = 0

    def as_fact(self) -> Parameter:
        return Parameter(**{name: getattr(self, name) for name in Parameter._fields})


@dataclass(slots=True)
class _Page:
    """What is known of one optimizer."""

    index: int
    class_name: str
    has_own_step: bool
    site: int
    was_frozen: bool = False
    step_site: int = 0
    first_step: int = 0
    num_steps: int = 0
    is_frozen: bool = True
    groups: list[Group] = field(default_factory=list)
    suspects: "list[weakref.ref[Tensor]] | None" = None
    """Parameters that never had a gradient."""

    def as_fact(self, table: list[Place]) -> ListedOptimizer:
        return ListedOptimizer(
            number=self.index,
            class_name=self.class_name,
            made_at=table[self.site],
            stepped_at=table[self.step_site],
            was_frozen=self.was_frozen,
            first_step=self.first_step,
            num_steps=self.num_steps,
            is_frozen=self.is_frozen,
            groups=self.groups,
            has_own_step=self.has_own_step,
        )


class _Roster:
    def __init__(self, tape: Tape, closeness: Closeness) -> None:
        self._tape = tape
        self._close = closeness
        self._entries: dict[int, _Entry] = {}
        self._all: list[_Entry] = []
        self._trained: set[int] = set()
        self._pages: dict[int, _Page] = {}
        """Of optimizers, by their numbers."""
        self._models = tape.things("model")
        self._roots: dict[int, int] = {}
        self._num_calls: dict[int, int] = {}
        self._called: set[int] = set()
        self._called_before: set[int] = set()
        self._leaves: list[Tensor] = []
        self._flow: GradientFlow | None = None
        self._reported: set[Facts] = set()

    # Parameters

    def _entry(self, parameter: Tensor) -> _Entry:
        key = id(parameter)
        entry = self._entries.get(key)
        if entry is None:
            shape = () if nn.parameter.is_lazy(parameter) else tuple(parameter.shape)
            entry = _Entry(key, None, shape, read_sample(parameter), self._tape.num_steps)
            entry.ref = Ref(parameter, lambda _: self._forget(key))
            self._entries[key] = entry
            if len(self._all) < _MAX_WRITTEN:
                self._all.append(entry)
        elif entry.sample is None:  # it had no values yet: lazy, or on no device
            entry.sample = read_sample(parameter)
            entry.shape = () if nn.parameter.is_lazy(parameter) else tuple(parameter.shape)
        return entry

    def _forget(self, key: int) -> None:
        self._entries.pop(key, None)
        self._trained.discard(key)

    def _compare(self, parameter: Tensor, entry: _Entry) -> None:
        if not entry.is_changed:
            now = read_sample(parameter)
            entry.is_changed = now is None or now != entry.sample  # what cannot be read may have moved

    # Optimizers

    def observe_add(self, optimizer: Optimizer, /, *_: Any, **__: Any) -> Observation:
        """Observe `add_param_group`, which is also called while an optimizer is made."""
        yield
        self._tape.call_listener(self._add_group, optimizer)

    def observe_load(self, module: nn.Module, /, *_: Any, **__: Any) -> Observation:
        """Observe `load_state_dict`."""
        result = yield
        self._tape.call_listener(self._fill, module, set(getattr(result, "missing_keys", ())))

    def _add_group(self, optimizer: Optimizer) -> None:
        """A group of parameters was given to an optimizer, as also happens while it is made."""
        page = self._page(optimizer, _site_around(self._tape, optimizer))
        for parameter in optimizer.param_groups[-1]["params"]:
            entry = self._entry(parameter)
            entry.groups[page.index] = len(optimizer.param_groups) - 1
            entry.is_frozen = not parameter.requires_grad
            self._trained.add(id(parameter))
        page.was_frozen = page.was_frozen and not _has_trainable(optimizer)
        if page.suspects is not None:
            page.suspects = [Ref(item) for item in _parameters(optimizer)]
        self._close.renew()

    def _page(self, optimizer: Optimizer, site: int) -> _Page:
        number = self._tape.number("optimizer", optimizer)
        page = self._pages.get(number)
        if page is None:
            index = number if len(self._pages) < _MAX_PAGES else -1
            page = _Page(index, type(optimizer).__qualname__, _has_own_step(optimizer), site, was_frozen=True)
            self._pages[number] = page
        return page

    def step_begins(self, optimizer: Optimizer, number: int) -> None:
        page = self._pages.get(number)
        if page is None or not page.num_steps:
            page = self._meet(optimizer)
        page.num_steps += 1
        if page.is_frozen:
            page.is_frozen = not _has_trainable(optimizer)
        if page.suspects:
            self._clear_suspects(page)
        if self._close:
            self._look(optimizer, page)

    def step_ends(self, _optimizer: Optimizer, number: int) -> None:
        page = self._pages.get(number)
        if page is not None and page.suspects:  # a closure computes gradients inside of the step
            self._clear_suspects(page)

    def _meet(self, optimizer: Optimizer) -> _Page:
        site = self._tape.sites.here(1)
        page = self._page(optimizer, site)
        page.step_site, page.first_step = site, self._tape.num_steps
        page.suspects = [Ref(item) for item in _parameters(optimizer)] if page.index >= 0 else None
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                self._entry(parameter).groups.setdefault(page.index, index)
                self._trained.add(id(parameter))
        self._close.renew()
        return page

    def _clear_suspects(self, page: _Page) -> None:
        left = []
        for ref in page.suspects or ():
            parameter = ref()
            if parameter is None:
                continue
            if parameter.grad is None:
                left.append(ref)
            elif id(parameter) in self._entries:
                self._entries[id(parameter)].has_grad = True
        page.suspects = left

    def _look(self, optimizer: Optimizer, page: _Page) -> None:
        step = self._tape.num_steps
        page.groups = [_describe(group) for group in optimizer.param_groups]
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                entry = self._entry(parameter)
                entry.groups[page.index] = index
                entry.is_frozen = not parameter.requires_grad
                entry.num_steps += 1
                entry.last_step = step
                key = id(parameter)
                if parameter.grad is not None:
                    entry.has_grad = True
                    entry.num_lost = 0
                else:
                    self._compare(parameter, entry)
                    is_called = key in self._called or key in self._called_before
                    entry.num_lost = 0 if is_called or entry.is_frozen else entry.num_lost + 1

    def counted(self) -> None:
        self._called_before, self._called = self._called, set()

    # Models

    def forward_begins(self, module: nn.Module, _args: Any, _kwargs: Any) -> None:
        number = self._models[id(module)][0]
        num = self._num_calls[number] = self._num_calls.get(number, 0) + 1
        if num >= _FIRST_COMPARED and not num & (num - 1):
            self._read_again(module)
        if number not in self._roots:
            self._close.renew()
        if not self._close:
            return
        self._call_roll(module)
        if self._roots.get(number) != self._close.num_changes:
            self._roots[number] = self._close.num_changes
            self._close.know(module)
            self._examine(module)

    def _read_again(self, root: nn.Module) -> None:
        """See what has moved so far, at calls that become rarer; nothing is read from a device."""
        for parameter in module_tree.parameters(root):
            entry = self._entries.get(id(parameter))
            if entry is not None and not entry.groups and parameter.is_cpu and self._tape.num_steps:
                self._compare(parameter, entry)

    def _call_roll(self, root: nn.Module) -> None:
        number = self._tape.number("model", root)
        found: list[tuple[Tensor, str, nn.Module, type]] = []
        holders: dict[str, type] = {}
        for path, module in module_tree.named_modules(root):
            kind = type(module)
            if origin_of(kind, self._tape.sites.is_own) == "torch" and path:
                kind = holders.get(path.rpartition(".")[0], type(root))
            holders[path] = kind
            found.extend(
                (item, f"{path}.{name}" if path else name, module, kind)
                for name, item in module._parameters.items()
                if isinstance(item, nn.Parameter)
            )
            if len(holders) > _MAX_MODULES:
                return
        for parameter, path, module, kind in found:
            self._called.add(id(parameter))
            entry = self._entry(parameter)
            if (
                module_tree.is_training(root) or entry.path is None
            ):  # an evaluation says nothing about training
                entry.is_training = module_tree.is_training(module)
            if entry.path is None or entry.size < len(found):
                entry.path, entry.size, entry.model = path, len(found), number
                entry.holder, entry.origin = kind.__qualname__, origin_of(kind, self._tape.sites.is_own)
                if _has_name(root):
                    entry.is_loaded = True
            entry.is_frozen = not parameter.requires_grad

    def _examine(self, root: nn.Module) -> None:
        for parameter, holder, attribute, what, is_training in find_hidden(root):
            entry = self._entry(parameter)
            entry.is_training = is_training
            if entry.hidden is None:
                entry.hidden = HidingPlace(holder.__qualname__, file_of(holder), attribute, what)
        for facts in (*find_repeated(root, self._tape.sites.is_own), *find_switches(root)):
            if facts not in self._reported:
                self._reported.add(facts)
                self._tape.note(facts)

    def _fill(self, module: nn.Module, missing: set[str]) -> None:
        """A module's parameters were filled with others' values, but for those that were missing."""
        for name, parameter in module_tree.named_parameters(module):
            if name not in missing:
                self._entry(parameter).is_loaded = True

    # Gradients

    def backward_begins(self, losses: tuple[Tensor, ...], how: str) -> None:
        self._leaves, self._flow = [], None
        if how != "backward" or not self._close:
            return
        flow = follow(losses, self._trained)
        if flow is None:
            return
        self._flow = flow
        self._leaves = [
            leaf
            for leaf in flow.leaves
            if id(leaf) not in self._trained and (isinstance(leaf, nn.Parameter) or id(leaf) in self._entries)
        ]
        for leaf in self._leaves:
            self._compare(leaf, self._entry(leaf))

    def backward_ends(self, _losses: tuple[Tensor, ...], _how: str) -> None:
        leaves, flow = self._leaves, self._flow
        self._leaves, self._flow = [], None
        for leaf in flow.leaves if flow is not None else ():
            if id(leaf) in self._trained and leaf.grad is not None:  # it may be zeroed before the step
                self._entry(leaf).has_grad = True
        for leaf in leaves:
            if leaf.grad is not None and flow is not None:
                entry = self._entry(leaf)
                entry.has_grad = True
                if entry.num_passes or entry.num_alone or has_value(leaf.grad):
                    entry.num_passes += flow.has_trained
                    entry.num_alone += not flow.has_trained
                    entry.last_step = self._tape.num_steps
                    entry.is_beside = entry.is_beside or id(leaf) in flow.beside
                    entry.share = len(leaves) / max(1, len(flow.leaves))
                    entry.is_frozen = not leaf.requires_grad

    def closing(self) -> None:
        for entry in self._entries.values():
            parameter = entry.ref() if entry.ref is not None else None
            if parameter is not None and (not entry.groups or not entry.has_grad):
                self._compare(parameter, entry)
        facts = ParametersListed(
            [entry.as_fact() for entry in self._all],
            [page.as_fact(self._tape.sites.table) for page in self._pages.values() if page.index >= 0],
        )
        self._tape.mark(facts, 0, perf_counter_ns())


def read_sample(tensor: Tensor) -> list[float] | None:
    """Return a few of a tensor's values; None if it has none that can be read."""
    if tensor.layout != torch.strided or tensor.device.type == "meta" or nn.parameter.is_lazy(tensor):
        return None
    if type(tensor) not in (Tensor, nn.Parameter) or not tensor.numel() or tensor.is_complex():
        return None
    if tensor.untyped_storage().size() == 0:  # sharded, and not gathered now
        return None
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        found: list[float] = flat[:: max(1, len(flat) // _NUM_SAMPLED)][:_NUM_SAMPLED].tolist()
    return found


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    return (item for group in optimizer.param_groups for item in group["params"])


def _has_own_step(optimizer: Optimizer) -> bool:
    """Whether somebody else than torch has written its step. What torch wraps around one keeps its module."""
    return not type(optimizer).step.__module__.startswith("torch.optim.")


def _has_trainable(optimizer: Optimizer) -> bool:
    return any(item.requires_grad or item.grad is not None for item in _parameters(optimizer))


def _has_name(root: nn.Module) -> bool:
    """Whether it is a model that was published under a name, and so has learnt already."""
    known = getattr(vars(root).get("config"), "__dict__", {})  # asks no `__getattr__` of the user's
    return bool(known.get("_name_or_path"))


def _describe(group: dict[str, Any]) -> Group:
    decay = group.get("weight_decay")
    return Group(
        float(decay) if isinstance(decay, int | float) else 0.0, group.get("decoupled_weight_decay") is True
    )


def _site_around(tape: Tape, optimizer: Optimizer) -> int:
    """Return the line that makes an optimizer, or adds a group: outside of the optimizer's own class."""
    depth = 1
    frame = sys._getframe(depth)
    while frame.f_back is not None:
        if tape.sites.is_own(frame.f_code.co_filename) and frame.f_locals.get("self") is not optimizer:
            break
        frame, depth = frame.f_back, depth + 1
    return tape.sites.here(depth + 1)


_HOOKS = (
    Hook("torch.optim.Optimizer.add_param_group", _Roster.observe_add),
    Hook("torch.nn.Module.load_state_dict", _Roster.observe_load),
)
