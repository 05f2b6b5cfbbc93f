"""The course of a long run: where the loss stands at some steps, its spikes, and the memory of the process.

Owns how often each is read. Memory is read less and less often, so that a run of days costs no more than one
of minutes.
"""

from time import perf_counter_ns, process_time

from torch import Tensor
from torch.optim import Optimizer

from truestep.memory import held_bytes
from truestep.spikes import Spikes
from truestep.watch.evidence.facts.course import CoursePoint, LossSpiked
from truestep.watch.evidence.facts.optimizing import LossLevel
from truestep.watch.script.host import LateValues
from truestep.watch.script.tape import Tape

_EVERY, _NUM_POINTS = 16, 128
"""Steps from one point to the next; they double after so many points."""
_LOSS_EVERY = 16
"""Steps from one to the next at which the loss is noted; the first ones are all noted."""
_MAX_SPIKES = 16


def watch(tape: Tape) -> None:
    """Read the loss of each step, and memory at some."""
    tape.attend(_Course(tape), "backward_begins", "step_begins", "counted")


class _Course:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._next, self._every, self._num_points = _EVERY, _EVERY, 0
        self._spikes: dict[int, Spikes] = {}
        self._found: list[tuple[LossSpiked, int]] = []
        """Spikes since the last step, and their lines."""
        self._num_spikes = 0
        self._late = LateValues()
        self._optimizers: set[int] = set()

    def backward_begins(self, losses: tuple[Tensor, ...], how: str) -> None:
        under_way, step = self._tape.under_way, self._tape.num_steps
        site, loss = under_way.backward_site, under_way.loss
        if loss is None:
            self._late.collect()
        if how == "backward" and loss is not None:
            self._take(step, loss, site=site)
        elif how == "backward" and len(losses) == 1:
            self._late.add(losses[0], lambda loss: self._take(step, loss, site=site))

    def _take(self, step: int, loss: float, *, site: int) -> None:
        if step < _LOSS_EVERY or step % _LOSS_EVERY == 0:
            self._tape.note(LossLevel(loss))
        spikes = self._spikes.get(site)
        if spikes is None:
            spikes = self._spikes[site] = Spikes()
        spike = spikes.take(step, loss)
        if spike is not None and self._num_spikes < _MAX_SPIKES:
            facts = LossSpiked(step, spike.loss, spike.usual, spike.highest, spike.num_before)
            self._found.append((facts, site))

    def step_begins(self, _optimizer: Optimizer, number: int) -> None:
        if number not in self._optimizers:  # another training begins: its first loss is no spike
            self._optimizers.add(number)
            self._spikes.clear()
            self._found.clear()
        for facts, site in self._found:
            self._num_spikes += 1
            self._tape.mark(facts, site, perf_counter_ns())
        self._found.clear()

    def counted(self) -> None:
        if self._tape.num_steps < self._next:
            return
        self._num_points += 1
        if self._num_points % _NUM_POINTS == 0:
            self._every *= 2
        self._next = self._tape.num_steps + self._every
        held = held_bytes()
        if held is not None:
            self._tape.note(CoursePoint(self._tape.num_steps, held, process_time()))
