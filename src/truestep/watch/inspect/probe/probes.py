"""Probes: what one batch shows when it is passed once more through a copy of the model, between two steps.

They are made in a forked copy of the process: the script's objects, output and generators stay as they are.
Owns the questions: do samples influence each other, later tokens earlier outputs, and are units still alive.
"""

import weakref
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn

from truestep.base.device import Arrival
from truestep.watch.evidence.facts.passes import FutureSeen, SamplesMixed
from truestep.watch.evidence.kinds import NOT_CHECKED, Facts, named
from truestep.watch.evidence.moment import unnamed
from truestep.watch.inspect.probe import activity
from truestep.watch.inspect.probe.copies import copy_inputs, num_values, replicate, run
from truestep.watch.inspect.probe.forked_copy import ApartError, run_apart
from truestep.watch.inspect.probe.hosted import OnHost, copy_model, find_devices, to_host
from truestep.watch.inspect.probe.masks import probe_masks
from truestep.watch.inspect.probe.outputs import by_position, find_output, map_tensors, measure_moves
from truestep.watch.inspect.probe.places import probe_places
from truestep.watch.inspect.probe.spread import find_spread
from truestep.watch.script import module_tree
from truestep.watch.script.nested_tensors import find_tensors
from truestep.watch.script.refs import Ref
from truestep.watch.script.tape import Tape

_AT = (2, 7, 63)
"""The steps whose batch is passed once more: samples and tokens after the first of them."""
_MAX_MODELS, _MAX_NODES = 4, 64
_MIN_BATCH, _MIN_LENGTH, _MIN_SCRAMBLED = 4, 4, 2
_FEW = (7, 6, 5)
_MANY = 8
"""Samples of a batch whose units are looked at in a large model."""
_NUM_PASSES, _MAX_S = 9, 15.0
"""Forward passes of a probe, about, and how long they may take in a large model."""
_CHANGED, _SHIFTED = 1e-3, 0.95
_MARK = "truestep model"
_TARGETS = ("NllLossBackward0", "NllLoss2DBackward0", "MseLossBackward0", "SmoothL1LossBackward0")


def watch(tape: Tape) -> None:
    """Hold the inputs of a few steps until they are made, and then look."""
    probes = _Probes(tape)
    tape.listen(probes, "epoch", "counted")
    tape.listen(probes, "batch", "forward_begins", "forward_ends", "backward_begins", close_look=True)


@dataclass(kw_only=True)
class _Example:
    """A forward pass of a step that is looked at."""

    model: "weakref.ref[nn.Module]"
    number: int
    given: tuple[Any, Any]
    site: int
    is_new: bool
    """Whether the input is another tensor than in the step before."""
    devices: set[torch.device]
    """Those of the model and its inputs, without the CPU."""


@dataclass(kw_only=True)
class _Question:
    """What a probe needs, on the host or on its way there."""

    model: nn.Module
    step: int
    example: _Example
    targets: list[Tensor]
    shapes: list[torch.Size]
    hosted: dict[int, Tensor]
    arrival: Arrival


@dataclass
class _State:
    examples: dict[int, _Example] = field(default_factory=dict)
    targets: list[tuple[Tensor, int]] = field(default_factory=list)
    """What losses compare with, and the model whose output they take."""
    shapes: list[torch.Size] = field(default_factory=list)
    """Shapes of what a loader has collated sample by sample in this step."""
    last: dict[int, "weakref.ref[Tensor]"] = field(default_factory=dict)
    sizes: dict[int, int | None] = field(default_factory=dict)
    begun_ns: dict[int, int] = field(default_factory=dict)
    pass_s: dict[int, float] = field(default_factory=dict)
    """How long the shortest forward pass of a model took."""
    questions: list[_Question] = field(default_factory=list)


class _Probes:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._state = _State()

    @property
    def _is_near(self) -> bool:
        return self._tape.num_steps <= _AT[0] or self._tape.num_steps in _AT

    def epoch(self, loader: Any, number: int) -> None:
        self._state.sizes[number] = getattr(loader, "batch_size", None)

    def batch(self, number: int, batch: Any) -> None:
        if self._tape.num_steps == _AT[0]:
            size = self._state.sizes.get(number)
            tensors = [leaf for _, leaf in find_tensors(batch) if leaf.dim()]
            self._state.shapes += [leaf.shape for leaf in tensors if leaf.shape[0] == size]

    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._is_near or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        number = self._tape.number("model", model)
        first = next((leaf for _, leaf in find_tensors((args, kwargs))), None)
        if first is None or not any(item.requires_grad for item in module_tree.parameters(model)):
            return
        state = self._state
        before = state.last.get(number)
        is_new = before is None or before() is not first
        state.last[number] = Ref(first)
        state.begun_ns[number] = perf_counter_ns()
        if self._tape.num_steps in _AT and (number in state.examples or len(state.examples) < _MAX_MODELS):
            try:
                devices = find_devices(model, (args, kwargs))
                self._expect_affordable(model, number, first, devices)
                given = copy_inputs((args, kwargs))  # no reference: it would delay the end of what is given
            except (ApartError, TypeError) as error:
                self._tape.note_trouble("a probe", error)
                return
            state.examples[number] = _Example(
                model=weakref.ref(model),
                number=number,
                given=given,
                site=self._tape.sites.here(1),
                is_new=is_new,
                devices=devices,
            )

    def _expect_affordable(
        self, model: nn.Module, number: int, first: Tensor, devices: set[torch.device]
    ) -> None:
        """Refuse a model whose copy, or whose passes on one core, would cost the script too much."""
        size = num_values(model)
        if size <= module_tree.LARGE:
            return
        what = f"{NOT_CHECKED}a model with {size / 1e6:,.0f}M parameters"
        if devices:
            raise ApartError(f"{what} is too large to be copied from {', '.join(map(str, devices))}")
        share = min(1.0, _MANY / max(first.shape[0], 1)) if first.dim() else 1.0
        expected_s = self._state.pass_s.get(number, 0.0) * torch.get_num_threads() * share * _NUM_PASSES
        if expected_s > _MAX_S:
            raise ApartError(f"{what} is too large: its probes would take about {expected_s:.0f} s")

    def forward_ends(self, model: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        self._time(model)
        if self._tape.num_steps != _AT[0]:
            return
        if next(module_tree.parameters(model), None) is not None:  # a loss may be a module too
            number = self._tape.number("model", model)
            for _, leaf in find_tensors(output):
                if leaf.grad_fn is not None:
                    node: Any = leaf.grad_fn
                    node.metadata[_MARK] = number

    def backward_begins(self, losses: tuple[Tensor, ...], how: str) -> None:
        if self._tape.under_way.is_inside:  # a model that differentiates its own output: probes have no graph
            for number in self._state.begun_ns:
                self._state.examples.pop(number, None)
        if self._tape.num_steps == _AT[0] and how == "backward":
            self._state.targets += find_targets(losses)

    def _time(self, model: nn.Module) -> None:
        state = self._state
        number = self._tape.number("model", model)
        begun_ns = state.begun_ns.pop(number, None)
        if begun_ns is not None:
            pass_s = (perf_counter_ns() - begun_ns) / 1e9
            state.pass_s[number] = min(pass_s, state.pass_s.get(number, pass_s))

    def counted(self) -> None:
        state = self._state
        if self._tape.num_steps > _AT[-1] + 1 and not state.questions:
            return
        if self._tape.num_steps in _AT:
            self._tape.look_closely(1)
        examples, state.examples = state.examples, {}
        targets, state.targets = state.targets, []
        shapes, state.shapes = state.shapes, []
        step = self._tape.num_steps - 1
        for item in examples.values() if step in _AT else ():
            model = item.model()
            if model is not None:
                own = [target for target, number in targets if number == item.number]
                state.questions.append(_ask(model, item, step=step, shapes=shapes, targets=own))
        while state.questions and state.questions[0].arrival.has_come():
            self._answer(state.questions.pop(0))

    def _answer(self, question: _Question) -> None:
        try:
            with self._tape.under_way.copying():
                found = run_apart(partial(self._probe, question))
        except ApartError as error:
            if question.example.devices and NOT_CHECKED not in str(
                error
            ):  # a tensor that the model does not hold stays there
                name = type(question.model).__name__
                error = ApartError(f"{NOT_CHECKED}a copy of {name} cannot run on the host: {error}")
            self._tape.note_trouble("a probe", error)
            return
        for facts in found:
            self._tape.mark(unnamed(*facts), question.example.site, perf_counter_ns())

    def _probe(self, question: _Question) -> list[tuple[str, Facts]]:
        replica = replicate(question.model, question.hosted)
        if replica is None:
            return []
        item = question.example
        found: list[tuple[str, Facts]] = []
        with torch.no_grad(), OnHost(item.devices) if item.devices else nullcontext():
            if question.step == _AT[0]:
                modes = [(module, module.training) for module in replica.modules()]
                replica.eval()
                found += _compare(self._tape, replica, question)
                for module, mode in modes:
                    module.training = mode
            active = activity.measure(self._tape, replica, item.number, _few_of(replica, item.given))
            if active is not None:
                found.append(named(active))
        return found


def _ask(  # limits: private to this module
    model: nn.Module, item: _Example, *, step: int, shapes: list[torch.Size], targets: list[Tensor]
) -> _Question:
    """Return a question about a model as it is now, between two steps."""
    hosted = copy_model(model) if item.devices else {}
    return _Question(
        model=model,
        step=step,
        example=item,
        targets=targets,
        shapes=shapes,
        hosted=hosted,
        arrival=Arrival(item.devices),
    )


def _few_of(replica: nn.Module, given: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return a few samples of a batch for a large model, all of it for others."""
    first = next(leaf for _, leaf in find_tensors(given))
    if num_values(replica) <= module_tree.LARGE or not first.dim():
        return given
    size = first.shape[0]
    few: tuple[Any, Any] = map_tensors(
        given, lambda leaf: leaf[:_MANY] if leaf.shape[:1] == (size,) else leaf
    )
    return few


def _compare(tape: Tape, replica: nn.Module, question: _Question) -> list[tuple[str, Facts]]:
    item, targets = question.example, question.targets
    has_classes = any(not target.is_floating_point() for target in targets)
    mixing = probe_samples(tape, replica, item, shapes=question.shapes, has_classes=has_classes)
    places = None
    if mixing is not None and not mixing.num_changed:
        places = probe_places(tape, replica, item.given, number=item.number, size=mixing.num_samples)
    ahead = probe_tokens(tape, replica, item, targets=targets)
    masks = probe_masks(tape, replica, item.given, number=item.number)
    return [named(facts) for facts in (mixing, places, ahead, masks) if facts is not None]


def find_targets(losses: tuple[Tensor, ...]) -> list[tuple[Tensor, int]]:
    """Return what losses compare with, as their graphs have saved it, and the model that is compared."""
    waiting: list[tuple[Any, int | None]] = [
        (loss.grad_fn, None) for loss in losses if loss.grad_fn is not None
    ]
    found, num = [], 0
    while waiting and num < _MAX_NODES:
        node, owner = waiting.pop(0)
        num += 1
        owner = node.metadata.get(_MARK, owner)  # some models return their loss
        if type(node).__name__ in _TARGETS:
            owner = _owner_under(node) if owner is None else owner
            if owner is not None:
                found.append((to_host(node._saved_target), owner))
        else:
            waiting += [(after, owner) for after, _ in node.next_functions if after is not None]
    return found


def _owner_under(node: Any) -> int | None:
    waiting, num = [node], 0
    while waiting and num < _MAX_NODES:
        node, num = waiting.pop(0), num + 1
        if _MARK in node.metadata:
            return int(node.metadata[_MARK])
        waiting += [after for after, _ in node.next_functions if after is not None]
    return None


def probe_samples(  # limits: private to this package
    tape: Tape, replica: nn.Module, item: _Example, *, shapes: list[torch.Size], has_classes: bool
) -> SamplesMixed | None:
    """Replace one sample by another and see which outputs change; None if their axis is not certain."""
    given = item.given
    whole = next(leaf for _, leaf in find_tensors(given))
    if whole.dim() < 2 or whole.shape[0] < _MIN_BATCH or _takes_statistics(replica):
        return None
    few, plain = _run_few(replica, given, whole.shape[0])
    first = next(leaf for _, leaf in find_tensors(few))
    size = first.shape[0]
    output = _find_scores(plain, first)
    is_collated = any(_has_samples_of(whole.shape, shape) for shape in shapes)
    is_fixed = size > max(_FEW)  # a model that takes no other number of rows may know them: a graph's nodes
    is_certain = is_collated or (not shapes and item.is_new and not is_fixed)
    if output is None or not is_certain:
        return None
    is_batch = _is_batch(first, output, is_collated=is_collated)
    donor = next((row for row in range(1, size) if not torch.equal(first[row], first[0])), 0)
    changed = map_tensors(few, lambda leaf: _replace(leaf, size, donor))
    other = _find_scores(run(replica, changed), first)
    if other is None or other.shape != output.shape or not is_batch:
        return None
    moved = measure_moves(output, other)[1:]
    num_changed = int((moved > _CHANGED).sum())
    facts = SamplesMixed(
        model=item.number,
        num_samples=size,
        num_changed=num_changed,
        most=float(moved.max()),
        is_classifier=False,
        place=None,
        operation=None,
    )
    if not num_changed:
        return facts
    alike = [leaf for _, leaf in find_tensors(few) if leaf.shape[1:] == first.shape[1:]]
    again = _find_scores(run(replica, few), first)
    is_same = again is not None and torch.equal(again, output)  # or else nothing can be said
    is_free = not is_collated and output.dim() <= 2 and not _is_scrambled(replica, few, output)
    if not is_same or (is_free and _has_two_axes(tape, replica, few, first)):
        return None
    place, operation = find_spread(tape, replica, few, changed, size=size)
    is_classifier = has_classes and len(alike) == 1
    return facts._replace(is_classifier=is_classifier, place=place, operation=operation)


def _has_samples_of(given: torch.Size, collated: torch.Size) -> bool:
    """Whether a tensor is a batch, or a view of one that keeps its first axis."""
    size = given[0]
    is_view = given.numel() == collated.numel() and collated[:1] == given[:1]
    return given == collated or (is_view and [*given].count(size) == [*collated].count(size) == 1)


def _run_few(replica: nn.Module, given: tuple[Any, Any], size: int) -> tuple[tuple[Any, Any], Any]:
    """Pass a few samples only, if the model can be called with them."""
    sizes = {length for _, leaf in find_tensors(given) for length in leaf.shape}
    num = next((num for num in _FEW if num not in sizes), size)  # no other axis shall look like this one
    few = map_tensors(given, lambda leaf: _take(leaf, size, num))
    try:
        return few, run(replica, few)
    except Exception:  # noqa: BLE001 - the size of the batch is built in
        return given, run(replica, given)


def _take(leaf: Tensor, size: int, num: int) -> Tensor:
    """Return the first few samples; in a state, they may be along another axis."""
    if leaf.dim() and leaf.shape[0] == size:
        return leaf[:num]
    axes = [axis for axis, length in enumerate(leaf.shape) if length == size]
    return leaf.narrow(axes[0], 0, num) if len(axes) == 1 else leaf


def _find_scores(values: Any, first: Tensor) -> Tensor | None:
    """Return the first output with an entry for each sample, or for each token of it one after the other."""
    found = find_output(values, first.shape[0])
    if found is None and first.dim() == 2 and not first.is_floating_point():
        rows = find_output(values, first.numel())
        found = None if rows is None or rows.dim() != 2 else rows.unflatten(0, first.shape)
    return found


def _takes_statistics(replica: nn.Module) -> bool:
    """Whether a layer normalises over the batch in eval mode too."""
    norms = [item for item in replica.modules() if isinstance(item, nn.modules.batchnorm._BatchNorm)]
    return any(item.running_mean is None for item in norms)


def _is_batch(first: Tensor, output: Tensor, *, is_collated: bool) -> bool:
    """Whether the first axis is that of samples, in what goes in and in what comes out."""
    size = first.shape[0]
    if list(output.shape).count(size) != 1:
        return False
    if is_collated:
        return True
    # Rows of numbers may be moments of one sequence, or nodes of one graph.
    if first.dim() < (3 if first.is_floating_point() else 2):
        return False
    return output.dim() <= 2 and output.shape != first.shape[:2] and list(first.shape).count(size) == 1


def _is_scrambled(replica: nn.Module, few: tuple[Any, Any], output: Tensor) -> bool:
    """Whether the rows' numbers were put in another order: some hang on others' input and not on their own.

    The first number stays the first then, and the last one the last; not so where only neighbours count.
    """
    size, own = output.shape[0], []
    for row in range(size):
        changed = map_tensors(few, lambda leaf, row=row: _replace(leaf, size, (row + 1) % size, at=row))
        other = find_output(run(replica, changed), size)
        if other is None or other.shape != output.shape:
            return False
        moved = measure_moves(output, other) > _CHANGED
        own.append(bool(moved[row]) or not bool(moved.any()))
    return own[0] and own[-1] and own.count(False) >= _MIN_SCRAMBLED


def _has_two_axes(  # limits: private to this module
    tape: Tape, replica: nn.Module, given: tuple[Any, Any], first: Tensor
) -> bool:
    """Whether the model works along the second axis too, and keeps it.

    Then its rows may be no samples, but agents in one scene or sentences of one text, which shall meet.
    """
    length = first.shape[1]
    half = length // 2
    for num in (half, -half) if half else ():
        changed = first.clone()
        part = slice(half, None) if num > 0 else slice(0, length - half)
        changed[:, part] = first.roll(1, dims=0)[:, part]
        swapped = map_tensors(given, lambda leaf, new=changed: new if leaf is first else leaf)
        if find_spread(tape, replica, given, swapped, axis=(length, num))[1] is not None:
            return True
    return False


def _replace(leaf: Tensor, size: int, donor: int, *, at: int = 0) -> Tensor:
    if not leaf.dim() or leaf.shape[0] != size:
        return leaf
    result = leaf.clone()
    result[at] = leaf[donor]
    return result


def probe_tokens(  # limits: private to this package
    tape: Tape, replica: nn.Module, item: _Example, *, targets: list[Tensor]
) -> FutureSeen | None:
    """Replace later tokens and see which earlier outputs change; None unless the next one is predicted."""
    for tokens in (leaf for _, leaf in find_tensors(item.given)):
        for target in targets:
            for axis in (1, 0):
                scored = scored_positions(tokens, target, axis)
                if scored is not None:
                    return _look_ahead(tape, replica, item, tokens=tokens, axis=axis, scored=scored)
    return None


def scored_positions(  # limits: private to this package
    tokens: Tensor, target: Tensor, axis: int
) -> Tensor | None:
    """Return which positions are scored, if the target is the input shifted by one along this axis."""
    if (
        tokens.dim() < 2
        or tokens.shape[axis] < _MIN_LENGTH
        or tokens.is_floating_point() != target.is_floating_point()
    ):
        return None
    tokens = tokens.detach().transpose(0, axis)
    length, rest = tokens.shape[0], tokens.shape[1:]
    following = tokens[1:]
    for num in (length, length - 1):
        shape = (num, *rest)
        if target.numel() != torch.Size(shape).numel():
            continue
        shaped = target.reshape((rest[0], num, *rest[1:])).transpose(0, 1) if axis else target.reshape(shape)
        shaped = shaped[: length - 1]
        counts = (
            shaped.isfinite() if shaped.is_floating_point() else shaped >= 0
        )  # what no class has is ignored
        if int(counts.sum()) < _MIN_LENGTH or _agree(shaped, following, counts) < _SHIFTED:
            continue
        if _agree(shaped, tokens[: length - 1], counts) < _SHIFTED:
            return counts.flatten(1).any(dim=1)
    return None


def _agree(one: Tensor, other: Tensor, counts: Tensor) -> float:
    return float((one == other)[counts].double().mean())


def _look_ahead(  # limits: private to this module
    tape: Tape,
    replica: nn.Module,
    item: _Example,
    *,
    tokens: Tensor,
    axis: int,
    scored: Tensor,
) -> FutureSeen | None:
    given = item.given
    length, size = tokens.shape[axis], tokens.shape[1 - axis]
    outputs = by_position(run(replica, given), length, size, axis)
    if outputs is None:
        return None
    cut = length // 2

    def change(leaf: Tensor) -> Tensor:
        if leaf is not tokens:
            return leaf
        result = leaf.clone().transpose(0, axis)
        original = leaf.transpose(0, axis)
        result[cut:] = original.roll(1, dims=1)[cut:] if size > 1 else original.flip(0)[: length - cut]
        return result.transpose(0, axis)

    changed = map_tensors(given, change)
    others = by_position(run(replica, changed), length, size, axis)
    if others is None:
        return None
    moved = measure_moves(outputs, others)[:cut] * scored[:cut]
    num_changed, place = int((moved > _CHANGED).sum()), None
    if num_changed:
        again = by_position(run(replica, given), length, size, axis)
        if again is None or not torch.equal(again, outputs):
            return None
        place, _ = find_spread(tape, replica, given, changed, axis=(length, cut))
    return FutureSeen(item.number, length, cut, num_changed, float(moved.max()), place)
