"""Gradients: which are applied, which are applied again, which are thrown away.

Owns the book of gradients between one step and the next, of each optimizer. Values are read at the steps that
are looked at; the loss at every step on the CPU, and now and then on a device, without waiting for it.
"""

import math
import sys
import weakref
from dataclasses import dataclass, field
from operator import ne
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.evidence.facts.optimizing import (
    BackwardExamined,
    GradientsApplied,
    GradientsClipped,
    GradientsDropped,
    GradientsNonfinite,
    ScaledClipped,
    StepSkipped,
)
from truestep.watch.hooks.table import WINDOW, Hook, Observation, put
from truestep.watch.inspect.training.gradient_samples import Spot, factor_of, find_spots, read_again
from truestep.watch.inspect.training.names import Names
from truestep.watch.inspect.training.passes import PassInputs
from truestep.watch.script import module_tree
from truestep.watch.script.host import LateValues
from truestep.watch.script.nested_tensors import has_value
from truestep.watch.script.refs import Ref
from truestep.watch.script.tape import Tape
from truestep.watch.script.under_way import CALLS

_MAX_KEPT, _MAX_NUMEL = 16, 1 << 20
_MAX_PASSES = 128
"""Of one step: a script may make many, or no step at all."""
_MAX_PENDING = 4096
"""Of all steps that were not made: gradients may be added up, or wait for good."""
_MAX_NOTED = 64
_NUM_FIRST = 8
_LATE_EVERY = 16
"""Steps from one loss on a device that is read to the next: what is not finite once stays so."""


def watch(tape: Tape) -> None:
    """Note, at each step of an optimizer that is looked at, where its gradients came from."""
    book = _Book(tape)
    events = ("backward_begins", "backward_ends", "step_begins", "step_ends", "zero_begins", "clip_ends")
    tape.listen(book, *events, "unscale_begins", "unscale_ends", "stepped_by_hand", "counted", "opened")
    tape.listen(book.pass_inputs, "forward_begins", "forward_ends", close_look=True)
    tape.listen(book.pass_inputs, "batch")
    put(tape, _HOOKS, book)


@dataclass(slots=True)
class _Pass:
    """One backward pass."""

    number: int
    site: int
    is_finite: bool
    is_used: bool = False
    num_pending: int = 0
    """How many optimizers have gradients of it that no step has used."""


@dataclass(slots=True)
class _Page:
    """What is known of one optimizer since its last step."""

    optimizer: "weakref.ref[Optimizer]"
    thread: int
    """The id of the one that has made its last step."""
    kept: "list[tuple[weakref.ref[Tensor], weakref.ref[Tensor], int]]" = field(default_factory=list)
    """Some parameters, the gradients that the last step applied, and their versions then, as long as nothing
    has touched them."""
    kept_after: int = 0
    """The last backward pass before that step."""
    is_kept: bool = True
    """Whether the last step was looked at: a look may begin between a step and what follows it."""
    num_stale: int = 0
    """How many of those a backward pass added to, unchanged and not zero."""
    num_before: int = 0
    """How many there were when a step with a closure began."""
    stale_site: int = 0
    pending: list[_Pass] = field(default_factory=list)
    """Backward passes whose gradients wait for a step."""
    spots: list[Spot] = field(default_factory=list)
    clip_site: int = 0
    """Where its gradients were clipped since the last backward pass."""
    clips_inside: list[int] = field(default_factory=list)
    """Where they were clipped before a further backward pass."""
    is_unscaled: bool = False
    is_seen: bool = True
    """Whether all since its last step was observed."""
    first_inside: int = sys.maxsize
    """The first backward pass that a step under way has made itself."""
    ids: frozenset[int] = frozenset()

    @property
    def parameters(self) -> list[Tensor]:
        optimizer = self.optimizer()
        return [] if optimizer is None else _parameters(optimizer)

    def close(self) -> None:
        """Reset the state after a step or `zero_grad()`."""
        self.pending = []
        self.spots = []
        self.clip_site = 0
        self.clips_inside = []
        self.is_unscaled = False
        self.num_stale = 0

    def covers(self, ids: frozenset[int]) -> bool:
        if not self.ids:
            self.ids = frozenset(map(id, self.parameters))
        return not self.ids.isdisjoint(ids)


class _Book:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.pass_inputs = PassInputs(tape)
        self._optimizers = tape.things("optimizer")
        self._pages: dict[int, _Page] = {}
        self._number = 0
        self._num_here = 0
        self._site = 0
        self._is_close = False
        self._first_at: dict[int, int] = {}
        """The step of a site's first backward pass: a script may train one model after the other."""
        self._before: dict[int, list[tuple[int, int] | None]] = {}
        self._is_finite = True
        self._is_suspect = False
        """Whether a loss or a norm was not finite: then gradients are looked at."""
        self._late = LateValues()
        self._num_dropped = self._num_nonfinite = 0
        self._names = Names(tape)

    @property
    def _is_looked_at(self) -> bool:
        return self._tape.is_looked_at or self._is_close

    def scaled_step(self, scaler: Any, /, optimizer: Any, *_: Any, **__: Any) -> Observation:
        """A scaler of gradients is asked for a step."""
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            self._tape.emit("unscale_begins", scaler, optimizer)  # by the optimizer itself
        yield
        self._tape.call_listener(self._end_scaled, optimizer)

    def opened(self) -> None:
        """All calls are observed again: what was known of gradients is old."""
        for page in self._pages.values():
            page.close()
            page.kept, page.is_kept = [], False
            page.is_seen = self._tape.window.is_whole
        self._before = {}
        self.pass_inputs.end_pass()
        self.counted()

    def counted(self) -> None:
        self._num_here = 0
        self._is_suspect = False
        self.pass_inputs.forget()

    def _page(self, optimizer: Optimizer) -> _Page:
        number = self._tape.number("optimizer", optimizer)
        if number not in self._pages:
            self._pages[number] = _Page(weakref.ref(optimizer), get_ident())
        return self._pages[number]

    def _meet_new(self) -> None:
        for number in [number for number, page in self._pages.items() if page.optimizer() is None]:
            del self._pages[number]  # a script may make a new one for each task
        for _, kept in [*self._optimizers.values()]:
            optimizer = kept() if isinstance(kept, weakref.ref) else kept
            if isinstance(optimizer, Optimizer):
                self._page(optimizer)

    def backward_begins(self, losses: tuple[Tensor, ...], how: str) -> None:
        if how != "backward":
            self.pass_inputs.num_grad_calls += 1
            return
        self._meet_new()
        self._number += 1
        self._num_here += 1
        self._site = self._tape.under_way.backward_site
        tape = self._tape
        loss = tape.under_way.loss
        self._is_finite = loss is None or math.isfinite(loss)
        if loss is None:
            self._read_late(losses)
        elif not self._is_finite:
            self._is_suspect = True
        first = self._first_at.setdefault(self._site, tape.num_steps)
        is_new = tape.num_steps - first < _NUM_FIRST
        self._is_close = self.pass_inputs.is_close = (
            is_new or tape.is_looked_at
        ) and self._num_here <= _MAX_PASSES
        for page in self._pages.values():
            left = [(item, _untouched(*item)) for item in page.kept]
            page.kept = [item for item, grad in left if grad is not None and has_value(grad)]
        if self._is_close:
            tape.look_closely(2)
            self._find_zeroed()
        own = {number: page for number, page in self._pages.items() if self._is_own(page)}
        self._before = {number: _state(page.parameters) for number, page in own.items()}

    def _read_late(self, losses: tuple[Tensor, ...]) -> None:
        self._late.collect()
        if self._tape.num_steps % _LATE_EVERY == 0 and len(losses) == 1 and not losses[0].is_cpu:
            self._late.add(losses[0], self._suspect)

    def _is_own(self, page: _Page) -> bool:
        """Whether no other thread's backward pass may be writing its gradients at this moment."""
        return page.thread == get_ident() or not self._tape.under_way.is_shared

    def _find_zeroed(self) -> None:
        """Gradients may be set to zero or None by hand."""
        for number, page in self._pages.items():
            if page.spots and page.pending and not any(spot.gradient_now() for spot in page.spots):
                self._drop(number, page, is_by_hand=True)

    def backward_ends(self, _losses: tuple[Tensor, ...], how: str) -> None:
        if how != "backward":
            return
        item = _Pass(self._number, self._site, self._is_finite)
        touched = {}
        for number, before in self._before.items():
            page = self._pages.get(number)
            num_touched = sum(map(ne, _state(page.parameters), before)) if page is not None else 0
            if page is not None and num_touched:
                touched[number] = num_touched
                self._add(page, item)
        self._before = {}
        if self._is_close:
            pass_inputs = self.pass_inputs
            facts = BackwardExamined(
                number=item.number,
                optimizers=[*touched],
                num_reached=[*touched.values()],
                stack=_stack(self._tape),
                inputs=pass_inputs.inputs,
                is_chained=pass_inputs.is_chained,
                num_forwards=pass_inputs.num_forwards,
                num_grad_calls=pass_inputs.num_grad_calls,
                loaders=sorted(pass_inputs.loaders),
            )
            self._tape.note(facts)
        self.pass_inputs.end_pass()

    def _add(self, page: _Page, item: _Pass) -> None:
        if page.kept:
            page.num_stale, page.stale_site = len(page.kept), self._site
            page.kept = []
        if len(page.pending) < _MAX_PENDING:
            page.pending.append(item)
            item.num_pending += 1
        if page.clip_site:
            page.clips_inside = [*page.clips_inside[:1], page.clip_site]
            page.clip_site = 0
        if self._is_close:
            page.spots = find_spots(page.parameters)

    def zero_begins(self, owner: Optimizer | nn.Module, _keeps: bool) -> None:
        self._meet_new()
        ids = frozenset(map(id, _parameters(owner)))
        for page in [page for page in self._pages.values() if page.covers(ids)]:
            if page.pending:
                optimizer = page.optimizer()
                number = -1 if optimizer is None else self._tape.number("optimizer", optimizer)
                self._drop(number, page, is_by_hand=False)
            page.close()

    def _drop(self, number: int, page: _Page, *, is_by_hand: bool) -> None:
        """Note backward passes of which no gradient was ever used. A step uses what it makes itself."""
        gone = [item for item in page.pending if item.number < page.first_inside]
        for item in gone:
            item.num_pending -= 1
        thrown = [item for item in gone if not item.num_pending and not item.is_used]
        if thrown and self._num_dropped < _MAX_NOTED:
            self._num_dropped += 1
            facts = GradientsDropped(
                optimizer=number,
                passes=[item.number for item in thrown],
                backward_at=self._tape.sites.table[thrown[-1].site],
                has_moved=any(spot.has_moved for spot in page.spots),
                is_finite=all(item.is_finite for item in thrown),
                is_by_hand=is_by_hand,
            )
            self._tape.note(facts)
        page.close()

    def _suspect(self, value: float) -> None:
        self._is_suspect = self._is_suspect or not math.isfinite(value)

    def clip_ends(self, parameters: Any, limit: float | None, result: Any) -> None:
        if type(result) is Tensor and result.is_cpu and result.numel() == 1:
            self._suspect(result.item())
        if not self._is_looked_at or self._num_here > _MAX_PASSES:
            return
        self._meet_new()
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters or ())
        ids = frozenset(map(id, given))
        pages = {number: page for number, page in self._pages.items() if page.covers(ids)}
        if limit is not None and math.isfinite(limit) and pages and self._tape.window.is_whole:
            is_in_step = any(page.first_inside < sys.maxsize for page in pages.values())
            state = _gradient_state(given, pages)
            if state != "unknown" or all(page.is_kept for page in pages.values()):
                self._tape.note(GradientsClipped(list(pages), state, is_in_step))
            for page in pages.values():
                page.clip_site = self._tape.sites.here() if page.pending else 0
        for page in pages.values():
            page.spots = read_again(page.spots)

    def unscale_begins(self, scaler: Any, optimizer: Optimizer) -> None:
        page = self._page(optimizer)
        scale = scaler.get_scale() if page.clip_site and scaler.is_enabled() else 1.0
        if scale != 1.0 and not page.is_unscaled:
            clipped_at = self._tape.sites.table[page.clip_site]
            self._tape.note(ScaledClipped(self._tape.number("optimizer", optimizer), clipped_at, scale))
        page.is_unscaled = True

    def unscale_ends(self, _scaler: Any, optimizer: Optimizer) -> None:
        page = self._page(optimizer)
        page.spots = read_again(page.spots)

    def _end_scaled(self, optimizer: Optimizer) -> None:
        """A scaler was asked for a step: if it made none, it threw the gradients away on purpose."""
        page = self._page(optimizer)
        if page.pending:
            self._tape.note(StepSkipped(self._tape.number("optimizer", optimizer)))
            for item in page.pending:
                item.is_used = True
            page.close()

    def step_begins(self, optimizer: Optimizer, number: int) -> None:
        page = self._pages.get(number) or self._page(optimizer)
        is_own = page.is_seen and self._is_own(page) and not self._tape.under_way.is_late
        page.thread = get_ident()
        if not is_own:  # which passes it is made of was not seen
            page.close()
        page.first_inside = self._number + 1
        if page.pending:
            self._find_nonfinite(optimizer, number)
        if not self._tape.under_way.is_stepping:  # a closure makes gradients of its own, and may zero these
            page.num_before, page.num_stale = page.num_stale, 0
        if self._is_looked_at and is_own:
            self._note_applied(optimizer, number)

    def _note_applied(self, optimizer: Optimizer, number: int) -> None:
        page = self._page(optimizer)
        parameters = _parameters(optimizer)
        table = self._tape.sites.table
        facts = GradientsApplied(
            optimizer=number,
            num_trainable=sum(item.requires_grad for item in parameters),
            num_with_gradient=sum(item.grad is not None for item in parameters),
            passes=[item.number for item in page.pending[:_MAX_PASSES]],
            factor=factor_of(page.spots),
            stale_at=table[page.stale_site] if page.num_stale else None,
            clipped_at=[table[site] for site in page.clips_inside[:2]],
            is_again=self._tape.under_way.is_stepping and not page.pending and self._is_again(page),
        )
        self._tape.note(facts)

    def _is_again(self, page: _Page) -> bool:
        """Whether all gradients that the last step applied are still there, and no pass came between."""
        left = [_untouched(*item) for item in page.kept]
        is_whole = None not in left and page.kept_after == self._number
        return is_whole and any(has_value(grad) for grad in left if grad is not None)

    def step_ends(self, optimizer: Optimizer, number: int) -> None:
        page = self._pages.get(number) or self._page(optimizer)
        if self._number >= page.first_inside:
            self._find_nonfinite(optimizer, number)
        else:
            page.num_stale = page.num_before  # its closure, if it has one, made no gradients
        for item in page.pending:
            item.is_used = True
        if page.num_stale and self._is_looked_at:
            page.pending = []
            self._note_applied(optimizer, number)  # what was there, or the closure has added to, was stale
        page.close()
        page.num_before = 0
        page.is_seen = True
        page.first_inside = sys.maxsize
        page.kept, page.kept_after = [], self._number
        page.is_kept = self._is_looked_at
        if page.is_kept:
            usable = [
                item
                for item in _parameters(optimizer)
                if item.grad is not None and type(item.grad) is Tensor and item.numel() <= _MAX_NUMEL
            ]
            spread = module_tree.spread(usable, _MAX_KEPT)
            page.kept = [
                (Ref(item), Ref(item.grad), item.grad._version) for item in spread if item.grad is not None
            ]

    def stepped_by_hand(self, owner: Any, number: int) -> None:
        """The script has updated its weights itself. What was before the first time is not known."""
        if number in self._pages:
            self.step_begins(owner, number)
            self.step_ends(owner, number)
        else:
            self._page(owner)

    def _find_nonfinite(self, optimizer: Optimizer, number: int) -> None:
        is_left_out = getattr(optimizer, "found_inf", None) is not None  # by a fused optimizer itself
        if is_left_out or not (self._is_suspect or self._is_looked_at) or self._num_nonfinite >= _MAX_NOTED:
            return
        bad = [item for item in _parameters(optimizer) if _has_nonfinite(item.grad)]
        if bad:
            self._num_nonfinite += 1
            facts = GradientsNonfinite(
                optimizer=number,
                names=[self._names.of(item) for item in bad[:5]],
                num_parameters=len(bad),
                has_nonfinite_weights=any(_has_nonfinite(item) for item in bad[:5]),
                is_loss_finite=self._is_finite,
                backward_at=self._tape.sites.table[self._site],
            )
            self._tape.note(facts)


_PLAIN = (Tensor, nn.Parameter, type(None))
_HOOKS = (Hook("torch.amp.GradScaler.step", _Book.scaled_step, rank=CALLS, when=WINDOW),)


def _parameters(owner: Any) -> list[Tensor]:
    if isinstance(owner, nn.Module):
        return list(module_tree.parameters(owner))
    return [item for group in owner.param_groups for item in group["params"]]


def _untouched(
    parameter_at: "weakref.ref[Tensor]", grad_at: "weakref.ref[Tensor]", version: int
) -> Tensor | None:
    """Return a gradient if it is still as the step has left it."""
    parameter, grad = parameter_at(), grad_at()
    is_there = parameter is not None and grad is not None and parameter.grad is grad
    return grad if is_there and grad is not None and grad._version == version else None


def _state(parameters: list[Tensor]) -> list[tuple[int, int] | None]:
    """Return what changes if a backward pass adds to a gradient."""
    grads = (item.grad for item in parameters)
    return [None if grad is None else (id(grad), grad._version) for grad in grads]


def _gradient_state(given: list[Tensor], pages: dict[int, _Page]) -> str:
    """Return what the gradients are that are being clipped, if no backward pass has made them."""
    grads = [item.grad for item in given if item.grad is not None]
    if any(page.pending for page in pages.values()):
        return "waiting"
    if not any(map(has_value, grads)):
        return "none"
    applied = {id(grad_at()) for page in pages.values() for _, grad_at, _ in page.kept}
    return "applied" if any(id(grad) in applied for grad in grads) else "unknown"


def _has_nonfinite(tensor: Tensor | None) -> bool:
    tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor, what this rank holds
    if tensor is None or type(tensor) not in _PLAIN or not tensor.numel() or tensor.is_meta:
        return False
    values = tensor.detach()
    if values.is_sparse:
        values = values._values()
    if not (values.is_floating_point() or values.is_complex()) or not values.numel():
        return False
    return not bool(torch.isfinite(values.abs().max()))


def _stack(tape: Tape) -> int:
    """Return a number for the lines of the user's that have led here, all of them."""
    frame: FrameType | None = sys._getframe(1)
    places = []
    while frame is not None:
        if tape.sites.is_own(frame.f_code.co_filename):
            places.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return hash(tuple(places))
