"""Networks that two optimizers step, for losses that ask them for opposite things.

Owns finding an optimizer that holds all parameters of another one, and in which direction either loss pushes
the scores of the network that both hold. Reads nothing unless there is such a pair.
"""

import weakref
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.evidence.facts.optimizing import AdversaryStepped
from truestep.watch.script import parts
from truestep.watch.script.refs import ByIdentity
from truestep.watch.script.tape import Tape

_MAX_OPTIMIZERS, _MAX_ROUNDS, _MAX_CALLS = 8, 8, 64
_NUM_NEAR = 12
"""Steps that are looked at from the first on that shows such a pair."""
_MIN_SCORES = 4


def watch(tape: Tape) -> None:
    """Look at the first steps of optimizers that share parameters."""
    adversaries = _Adversaries(tape)
    tape.attend(adversaries, "step_begins", "forward_ends", near=True)
    tape.attend(adversaries, "closing")


@dataclass
class _Call:
    """The scores that a shared network gave, once the backward pass has come to them."""

    has_graph: bool
    """Whether its input was made by another network that learns from it."""
    direction: int
    """1 if the loss falls as the scores rise, -1 if it falls as they fall, 0 if that differs."""


@dataclass
class _Pair:
    small: int
    big: int
    shared: set[int]
    site: int = 0
    has_both: bool = False
    """Whether the small one's loss asked for high scores in one call, and for low ones in another."""
    num_rounds: int = 0
    num_opposed: int = 0
    num_moved: int = 0


class _Adversaries:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._owned: dict[int, set[int]] = {}
        self._pairs: list[_Pair] = []
        self._calls: list[_Call] = []
        self._ids = ByIdentity[nn.Module, set[int]]()

    def step_begins(self, optimizer: Optimizer, number: int) -> None:
        calls, self._calls = self._calls, []
        if number not in self._owned:
            self._meet(optimizer, number)
            return
        for pair in self._pairs:
            if number == pair.small:
                directions = {call.direction for call in calls if not call.has_graph}
                pair.has_both = directions == {1, -1}
            elif number == pair.big and pair.num_rounds < _MAX_ROUNDS:
                self._compare(pair, optimizer, calls)

    def _meet(self, optimizer: Optimizer, number: int) -> None:
        """Remember what an optimizer holds, and who holds a part of the same."""
        if len(self._owned) >= _MAX_OPTIMIZERS:
            return
        own = {id(item) for group in optimizer.param_groups for item in group["params"]}
        for other, ids in self._owned.items():
            small, big = (number, other) if own < ids else (other, number)
            if own and ids and (own < ids or ids < own):
                self._pairs.append(_Pair(small, big, own & ids))
                self._tape.come_near(_NUM_NEAR)
        self._owned[number] = own

    def _compare(self, pair: _Pair, optimizer: Optimizer, calls: list[_Call]) -> None:
        """See what the bigger one's loss asks the shared network for, and whether its step changes that."""
        has_both, pair.has_both = pair.has_both, False
        moved = [
            item
            for group in optimizer.param_groups
            if group.get("lr")
            for item in group["params"]
            if id(item) in pair.shared and item.grad is not None and bool(item.grad.any())
        ]
        if not calls or not moved:
            pair.num_rounds += bool(calls)
            return
        directions = {call.direction for call in calls if call.has_graph}
        is_through = all(call.has_graph for call in calls)
        pair.num_rounds += 1
        pair.num_opposed += has_both and is_through and len(directions) == 1 and directions <= {1, -1}
        pair.num_moved = len(moved)
        pair.site = pair.site or self._tape.sites.here(2)

    def forward_ends(self, model: nn.Module, args: Any, _kwargs: Any, output: Any) -> None:
        if not self._pairs or len(self._calls) >= _MAX_CALLS or torch.compiler.is_compiling():
            return
        if model not in self._ids:
            self._ids[model] = {id(item) for item in parts.parameters(model)}
        ids = self._ids[model]
        is_shared = bool(ids) and any(ids <= pair.shared for pair in self._pairs)
        given = [item for item in args if isinstance(item, Tensor)]
        if not is_shared or not given or not _is_score(output, given[0]):
            return
        # bits: a hook that returns nothing leaves the gradient as it is
        see = partial(_see, weakref.ref(self), given[0].requires_grad, output.output_nr)
        output.grad_fn.register_prehook(see)

    def closing(self) -> None:
        for pair in self._pairs:
            if pair.num_rounds and pair.num_opposed:
                facts = AdversaryStepped(
                    small=pair.small,
                    big=pair.big,
                    num_shared=len(pair.shared),
                    num_others=len(self._owned[pair.big]) - len(pair.shared),
                    num_moved=pair.num_moved,
                    num_rounds=pair.num_rounds,
                    num_opposed=pair.num_opposed,
                )
                self._tape.mark(facts, pair.site, perf_counter_ns())

    def add(self, has_graph: bool, direction: int) -> None:
        """A backward pass has come to scores."""
        self._calls.append(_Call(has_graph, direction))


def _see(  # limits: private to this module
    keeper: "weakref.ref[_Adversaries]", has_graph: bool, place: int, gradients: tuple[Any, ...]
) -> None:
    found, gradient = keeper(), gradients[place]
    if found is not None and parts.is_plain(gradient):
        values = gradient.detach()
        is_up, is_down = bool((values <= 0).all()), bool((values >= 0).all())
        found.add(has_graph, 0 if is_up == is_down else 1 if is_up else -1)


def _is_score(output: Any, given: Tensor) -> bool:
    """Whether it has an entry for each sample, on the CPU."""
    if type(output) is not Tensor or output.grad_fn is None or not output.is_cpu or output.dim() < 1:
        return False
    return output.numel() >= _MIN_SCORES and given.shape[:1] == output.shape[:1]
