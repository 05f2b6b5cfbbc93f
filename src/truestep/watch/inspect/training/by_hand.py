"""Steps by hand: those of a script that updates its weights itself and makes no optimizer.

Owns telling which weights have changed since the last backward pass, and what stands for their optimizer.
"""

from time import perf_counter_ns
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.hooks.steps import Turns
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.inspect.training.gradient_samples import Spot, find_spots, find_weights
from truestep.watch.script.autograd import find_nodes
from truestep.watch.script.refs import ByIdentity, Ref
from truestep.watch.script.tape import Tape

_EVENTS = ("forward_begins", "zero_begins", "backward_begins", "backward_ends", "step_begins", "closing")
_MAX_NODES, _MAX_WEIGHTS = 20_000, 64


def watch(tape: Tape) -> None:
    """Count the steps of scripts without an optimizer; to be put in place before those who want to know."""
    steps = _StepsByHand(tape)
    tape.listen(steps, *_EVENTS)
    put(tape, [Hook("torch.optim.Optimizer.__init__", _StepsByHand.made)], steps)


class UpdatedByHand:
    """Stands for an optimizer: the weights that a script updates together."""

    def __init__(self) -> None:
        self.state: dict[Any, Any] = {}
        self.defaults: dict[str, Any] = {}
        self.weights: list[Ref[Tensor]] = []

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """As an optimizer has them."""
        return [{"params": [weight for kept in self.weights if (weight := kept()) is not None]}]


class _StepsByHand:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._turns = Turns(tape.things("optimizer"))
        self._weights: dict[int, Ref[Tensor]] = {}
        self._owners = ByIdentity[Tensor, UpdatedByHand]()
        self._pending: list[Spot] = []
        """Of the weights under the last backward pass that have not changed since."""
        self._site = 0
        self._found: dict[int, list[UpdatedByHand]] = {}
        """What was updated after the last pass at a site."""
        self._is_assumed = False
        self._is_functional = False
        """Whether it was `torch.autograd.grad`, of which no step is counted."""

    def made(self, _optimizer: Optimizer, /, *_: Any, **__: Any) -> Observation:
        """An optimizer is made: from here on the steps are its own."""
        yield
        self._end()

    def step_begins(self, *_: Any) -> None:
        """An optimizer steps that was made before the observation."""
        self._end()

    def _end(self) -> None:
        self._tape.ignore(*(getattr(self, name) for name in _EVENTS))

    def forward_begins(self, *_: Any) -> None:
        self._look()

    def zero_begins(self, _owner: nn.Module, _keeps: bool) -> None:
        self._look()

    def closing(self) -> None:
        self._look()

    def backward_begins(self, losses: tuple[Tensor, ...], _how: str) -> None:
        self._look()
        is_known = any(kept() is not None for kept in self._weights.values())
        if self._tape.is_looked_at or not is_known:
            leaves = [node.variable for node in find_nodes(losses, ("AccumulateGrad",), limit=_MAX_NODES)]
            self._weights = {key: kept for key, kept in self._weights.items() if kept() is not None}
            self._weights |= {id(leaf): Ref(leaf) for leaf in leaves}

    def backward_ends(self, _losses: tuple[Tensor, ...], how: str) -> None:
        if how != "backward" and not self._is_functional and (self._pending or self._is_assumed):
            return
        self._is_functional = how != "backward"
        self._site = self._tape.under_way.backward_site
        weights = [weight for kept in self._weights.values() if (weight := kept()) is not None]
        is_quick = self._tape.is_looked_at or all(weight.is_cpu for weight in weights)
        find = find_weights if self._is_functional else find_spots
        self._pending = find(weights, most=_MAX_WEIGHTS) if is_quick else []
        self._is_assumed = not is_quick and not self._is_functional  # reading would make the script wait

    def _look(self) -> None:
        """Find out whether the script has updated its weights since its last backward pass."""
        if self._is_assumed:
            owners = self._found.get(self._site, [])
        else:
            changed = [spot for spot in self._pending if spot.has_moved]
            if not changed:
                return
            if self._is_functional:
                self._pending = []
                self._tape.emit("turned_by_hand")
                return
            self._pending = [spot for spot in self._pending if spot not in changed]
            owners = self._found[self._site] = self._owners_of(changed)
        self._is_assumed = False
        for owner in owners:
            self._step(owner)

    def _owners_of(self, changed: list[Spot]) -> list[UpdatedByHand]:
        """Return what stands for the optimizers of these weights; new ones belong to the first."""
        weights = [weight for spot in changed if (weight := spot.reference()) is not None]
        known = [owner for weight in weights if (owner := self._owners.get(weight)) is not None]
        owners = list({id(owner): owner for owner in known}.values()) or [UpdatedByHand()]
        for weight in weights:
            if weight not in self._owners:
                self._owners[weight] = owners[0]
                owners[0].weights.append(Ref(weight))
        return owners

    def _step(self, owner: UpdatedByHand) -> None:
        tape, number = self._tape, self._tape.number("optimizer", owner)
        counts = self._turns.take(number)
        tape.emit("stepped_by_hand", owner, number)
        tape.mark(OptimizerStep(number, counts, None), self._site, perf_counter_ns())
        if counts:
            tape.count_step()
