"""Graphs of losses: how large they are, where they end, by what the loss is divided, whether they are kept.

Owns the walk over autograd's nodes, at the steps that are looked at and at some later ones.
"""

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.optimizing import (
    GraphCut,
    GraphMeasured,
    GraphRepeated,
    GraphsKept,
    LossTerm,
)
from truestep.watch.script.module_tree import is_plain
from truestep.watch.script.refs import Ref
from truestep.watch.script.tape import Tape

_MAX_NODES, _MAX_ALL_NODES = 20_000, 300_000
_MAX_PASSES = 128
_MAX_TERMS = 32
_MAX_PARTS = 8
_NUM_FIRST = 8
_MAX_MARKS, _NUM_KEPT, _MIN_AGE = 16, 4, 2

_MAX_WEIGHTS = 4
_MARK, _PASS = "truestep.mark", "truestep.pass"
_MAX_REPEATS, _TOLERANCE = 32, 0.01
_THROUGH = ("View", "Reshape", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias", "UnsafeView", "Expand")
_SUM, _MEAN = 2, 1
_sequence_number = torch._C._autograd._get_sequence_nr


def watch(tape: Tape) -> None:
    """Note the graph of a loss as its backward pass begins, and graphs that stay alive."""
    events = ("backward_begins", "stepped_by_hand", "turned_by_hand", "counted", "opened", "closing")
    tape.listen(_Graphs(tape), *events)


class _Mark:
    """Lives in a node of autograd, and as long as it."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True)
class _Marked:
    mark: "weakref.ref[_Mark]"
    parts: "tuple[weakref.ref[_Mark], ...]"
    """In the terms that the loss is the sum of."""
    step: int
    site: int

    def is_alive(self, age: int) -> bool:
        """Whether somebody holds it."""
        return age >= _MIN_AGE and _has_living(self.mark, *self.parts)


class _Graphs:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._number = 0
        self._num_walked = 0
        self._num_here = 0
        self._last_node = 0
        """How many nodes had been made when the last step was counted."""
        self._marks: deque[_Marked] = deque(maxlen=_MAX_MARKS)
        self._reported: set[int] = set()
        self._first_at: dict[int, int] = {}
        """The step in which a site's first backward pass was."""

        self._turn = self._nodes_then = 0
        """How many steps were made, and how many nodes there were at the last loss."""
        self._is_by_hand = False
        self._earlier: tuple[int, int] | None = None
        """The pass that began at the same loss as the one under way: its number and its site."""
        self._largest: list[_Largest] = []
        self._num_repeats = 0

    def stepped_by_hand(self, *_: Any) -> None:
        self._is_by_hand = True

    def turned_by_hand(self) -> None:
        self._is_by_hand = True
        self.counted()

    def counted(self) -> None:
        # A step by hand is noticed later, when the next loss may have been computed.
        self._last_node = self._nodes_then if self._is_by_hand else _num_nodes()
        self._num_here = 0
        self._turn += 1

    def opened(self) -> None:
        """All calls are observed again, after steps that were only counted."""
        self._turn = max(self._turn, self._tape.num_steps - 1)
        self.counted()

    def backward_begins(self, losses: tuple[Tensor, ...], how: str) -> None:
        site = self._tape.under_way.backward_site
        self._number += how == "backward"
        self._num_here += 1
        self._earlier = None
        if self._tape.num_steps and how != "backward":
            return
        if how != "backward":
            if self._num_here <= _MAX_PASSES and any(loss.requires_grad for loss in losses):
                self._note(losses, 0)
            return
        if not losses or not self._is_due(site):
            return
        if not any(loss.requires_grad for loss in losses):
            self._tape.note(GraphCut())
            return
        self._find_kept()
        self._note(losses, self._number)
        node: Any = losses[0].grad_fn
        if node is not None:
            is_divided = False
            while (step := _step_down(node)) is not None:
                node = step[0]  # what is kept may be the loss before it was divided
                is_divided = is_divided or abs(step[1]) < 1
            if len(losses) == 1 and losses[0].numel() == 1 and not is_divided:
                self._find_earlier(losses, node, site)
            mark = _put_mark(node)
            terms = _find_terms(node)
            parts = tuple(_put_mark(term) for term in terms if term is not node)
            self._marks.append(_Marked(mark, parts, self._turn, site))

    def _find_earlier(self, losses: tuple[Tensor, ...], node: Any, site: int) -> None:
        """Find the pass that began here before, and read some of the gradients that it has left."""
        while type(node).__name__.startswith(("MeanBackward", "SumBackward")) and node.next_functions[0][0]:
            node = node.next_functions[0][0]  # each pass may begin at another mean of one loss
        if type(node).__name__ == "AccumulateGrad":
            return
        self._earlier = node.metadata.get(_PASS)
        node.metadata[_PASS] = (self._number, site)
        if self._earlier is not None and self._num_repeats < _MAX_REPEATS:
            self._largest = [_Largest(item) for item in _walk(losses, 0).first]
            self._tape.listen(self, "backward_ends")

    def backward_ends(self, _losses: tuple[Tensor, ...], how: str) -> None:
        if how != "backward" or self._earlier is None:
            return
        self._tape.ignore(self.backward_ends)
        largest, self._largest = self._largest, []
        if largest and all(item.is_doubled() for item in largest):
            self._num_repeats += 1
            number, site = self._earlier
            self._tape.note(GraphRepeated(self._number, number, self._tape.sites.table[site], len(largest)))

    def _note(self, losses: tuple[Tensor, ...], backward: int) -> None:
        if self._num_walked >= _MAX_ALL_NODES:
            return
        graph = _walk(losses, self._last_node)
        self._num_walked += graph.num_nodes
        factors, terms = _scale(losses) if backward else ([], [])
        facts = GraphMeasured(
            backward=backward,
            turn=self._turn,
            num_nodes=graph.num_nodes,
            num_old=graph.num_old,
            leaves=hash(frozenset(graph.leaves)),
            num_parameters=graph.num_parameters,
            other_sizes=graph.other_sizes[:8],
            factors=factors,
            terms=terms,
        )
        self._tape.note(facts)
        self._nodes_then = _num_nodes()

    def _is_due(self, site: int) -> bool:
        step = self._tape.num_steps
        is_new = step - self._first_at.setdefault(site, step) < _NUM_FIRST
        is_power = step & (step - 1) == 0
        return (is_new or is_power or self._tape.is_looked_at) and self._num_here <= _MAX_PASSES

    def closing(self) -> None:
        self._find_kept()

    def _find_kept(self) -> None:
        """Look for graphs of steps long over that somebody still holds."""
        step = self._turn
        alive: dict[int, list[_Marked]] = {}
        for item in self._marks:
            if item.is_alive(step - item.step):
                alive.setdefault(item.site, []).append(item)
        for site, items in alive.items():
            if len({item.step for item in items}) >= _NUM_KEPT and site not in self._reported:
                self._reported.add(site)
                facts = GraphsKept(
                    backward_at=self._tape.sites.table[site],
                    steps=[item.step + 1 for item in items],
                    last_step=step + 1,
                    is_part=all(item.mark() is None for item in items),
                )
                self._tape.note(facts)


class _Largest:
    """The largest number of a tensor's gradient."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = Ref(tensor)
        grad = tensor.grad
        is_known = is_plain(tensor) and is_plain(grad) and tensor.numel() > 0
        self._index = int(grad.detach().abs().argmax()) if is_known and grad is not None else None
        self._before = self._read()

    def _read(self) -> float:
        tensor = self._tensor()
        grad = None if tensor is None else tensor.grad
        if grad is None or self._index is None or grad.dtype.is_complex:
            return 0.0
        return float(grad.detach().reshape(-1)[self._index].item())

    def is_doubled(self) -> bool:
        """Whether it is twice what it was: a pass has added what was there."""
        return self._before != 0 and abs(self._read() / self._before - 2) < _TOLERANCE


def _has_living(*marks: "weakref.ref[_Mark]") -> bool:
    return any(mark() is not None for mark in marks)


def _put_mark(node: Any) -> "weakref.ref[_Mark]":
    mark = node.metadata[_MARK] = _Mark()
    return weakref.ref(mark)


def _find_terms(node: Any) -> list[Any]:
    """Return the nodes that a loss is the sum or the mean of."""
    found: list[Any] = []
    left = [node]
    while left and len(found) < _MAX_PARTS:
        node = left.pop()
        while (step := _step_down(node)) is not None:
            node = step[0]
        name = type(node).__name__
        below = [child for child, _ in node.next_functions if child is not None]
        if name.startswith(("SumBackward", "MeanBackward")) and below:
            if type(below[0]).__name__.startswith("StackBackward"):
                left += [child for child, _ in below[0].next_functions if child is not None]
                continue
        elif name.startswith(("AddBackward", "SubBackward")):
            left += below
            continue
        if name != "AccumulateGrad":
            found.append(node)
    return found


def _num_nodes() -> int:
    found: int = _sequence_number()
    return found


@dataclass
class _Graph:
    num_nodes: int = 0
    num_old: int = 0
    """Nodes made before the last step ended."""
    leaves: set[int] = field(default_factory=set)
    first: list[Tensor] = field(default_factory=list)
    """Some of them."""
    num_parameters: int = 0
    other_sizes: list[int] = field(default_factory=list)

    def add_leaf(self, variable: Any) -> None:
        if not isinstance(variable, Tensor):
            return
        self.leaves.add(id(variable))
        if len(self.first) < _MAX_WEIGHTS:
            self.first.append(variable)
        if isinstance(variable, nn.Parameter):
            self.num_parameters += 1
        else:
            self.other_sizes.append(variable.numel())


def _walk(losses: tuple[Tensor, ...], last_node: int) -> _Graph:
    graph = _Graph()
    for loss in losses:
        if loss.grad_fn is None and loss.requires_grad:
            graph.add_leaf(loss)
    stack: list[Any] = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    seen = set(stack)  # holds the nodes: the id of one that is gone may come again
    while stack and len(seen) < _MAX_NODES:
        node = stack.pop()
        if type(node).__name__ == "AccumulateGrad":
            graph.add_leaf(getattr(node, "variable", None))
            continue
        graph.num_nodes += 1
        graph.num_old += node._sequence_nr() < last_node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
    return graph


def _scale(losses: tuple[Tensor, ...]) -> tuple[list[float], list[LossTerm]]:
    """Return the factors by which the whole loss is multiplied, and its terms with their own."""
    if len(losses) != 1 or losses[0].grad_fn is None or losses[0].numel() != 1:
        return [], []
    node: Any = losses[0].grad_fn
    factors: list[float] = []
    while (step := _step_down(node)) is not None:
        node, factor = step
        factors.append(factor)
    terms: list[LossTerm] = []
    _add_terms(node, [], terms)
    return factors, terms


def _add_terms(node: Any, factors: list[float], terms: list[LossTerm]) -> None:
    while (step := _step_down(node)) is not None:
        node, factor = step
        factors = [*factors, factor]
    name = type(node).__name__
    children = [child for child, _ in node.next_functions if child is not None]
    if name.startswith(("AddBackward", "SubBackward")) and len(terms) < _MAX_TERMS:
        for child in children:
            _add_terms(child, factors, terms)
    else:
        terms.append(LossTerm(_reduction(node, name), factors))


def _step_down(node: Any) -> tuple[Any, float] | None:
    """Return what a node multiplies by a number, and the number; None if it does something else."""
    name = type(node).__name__
    children = node.next_functions
    if name == "NegBackward0" or (name.startswith(_THROUGH) and len(children) == 1):
        return (children[0][0], 1.0) if children[0][0] is not None else None
    if len(children) != 2 or sum(child is None for child, _ in children) != 1:
        return None
    if name.startswith(("AddBackward", "SubBackward")):  # a constant was added
        return next(child for child, _ in children if child is not None), 1.0
    if name.startswith("MulBackward") or (name.startswith("DivBackward") and children[0][0] is not None):
        is_second = children[1][0] is None
        number = _number(node, "_saved_other" if is_second else "_saved_self")
        if number:
            child = children[0][0] if is_second else children[1][0]
            return child, number if name.startswith("Mul") else 1 / number
    return None


def _number(node: Any, name: str) -> float | None:
    try:
        saved = getattr(node, name)
    except (AttributeError, RuntimeError):  # freed already
        return None
    if not isinstance(saved, Tensor) or saved.numel() != 1 or saved.dtype.is_complex:
        return None
    if saved.device.type != "cpu":  # a scaler's own scale
        return 1.0
    value: Any = saved.tolist()  # no operation: to modes a number that became a tensor is none
    return float(value if saved.dim() == 0 else saved.reshape(-1).tolist()[0])


def _reduction(node: Any, name: str) -> str:
    if name.startswith("MeanBackward"):
        return "mean"
    if name.startswith("SumBackward"):
        return "sum"
    saved = getattr(node, "_saved_reduction", None)
    return {_MEAN: "mean", _SUM: "sum"}.get(saved, "other") if isinstance(saved, int) else "other"
