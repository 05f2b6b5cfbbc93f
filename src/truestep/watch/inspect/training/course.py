"""The course of a run: the loss at some steps."""

from torch import Tensor

from truestep.watch.evidence.facts.optimizing import LossLevel
from truestep.watch.script.host import LateValues
from truestep.watch.script.tape import Tape

_EVERY = 16
"""Steps from one to the next at which the loss is noted; the first ones are all noted."""


def watch(tape: Tape) -> None:
    """Read the loss at some steps."""
    late = LateValues()

    def take(step: int, loss: float) -> None:
        if step < _EVERY or step % _EVERY == 0:
            tape.note(LossLevel(loss))

    def backward_begins(losses: tuple[Tensor, ...], how: str) -> None:
        step, loss = tape.num_steps, tape.under_way.loss
        if loss is None:
            late.collect()
        if how == "backward" and loss is not None:
            take(step, loss)
        elif how == "backward" and len(losses) == 1:
            late.add(losses[0], lambda loss: take(step, loss))

    tape.listen(backward_begins=backward_begins)
