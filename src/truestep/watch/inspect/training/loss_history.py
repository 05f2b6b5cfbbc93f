"""The course of a run: the loss at some steps."""

from math import isfinite

from torch import Tensor

from truestep.watch.evidence.facts.optimizing import LossLevel
from truestep.watch.script.host import LateValues
from truestep.watch.script.tape import Tape
from truestep.watch.script.window import AFTER_CHANGE, PROBE_EVERY


def watch(tape: Tape) -> None:
    """Read the loss of the first steps, and of every sixteenth one."""
    late = LateValues()

    def take(step: int, loss: float) -> None:
        if not tape.window.is_open and not isfinite(loss):
            tape.look_closely(AFTER_CHANGE)
        if step < PROBE_EVERY or step % PROBE_EVERY == 0:
            tape.note(LossLevel(loss))

    def probed(losses: tuple[Tensor, ...]) -> None:
        step = tape.num_steps
        late.collect()
        if len(losses) == 1:
            late.add(losses[0], lambda loss: take(step, loss))

    def backward_begins(losses: tuple[Tensor, ...], how: str) -> None:
        if how == "backward" and tape.under_way.loss is not None:
            take(tape.num_steps, tape.under_way.loss)
        elif how == "backward":
            probed(losses)

    tape.listen(backward_begins=backward_begins, probed=probed)
