"""What a run tells a loader, what it gets back, and how a global batch is cut into lanes.

Owns the arithmetic from a global step to epoch, positions and lanes. Leaves reading the data to others.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from truestep.errors import UsageError


class LaneBatch(NamedTuple):
    """One lane's samples of one step; `data` is what collate returned."""

    lane: int
    num_samples: int
    data: Any


class Batch(NamedTuple):
    """One step: `num_samples` counts the whole global batch, `lanes` holds this process's non-empty ones."""

    step: int
    epoch: int
    is_epoch_end: bool
    num_samples: int
    lanes: list[LaneBatch]


@dataclass(frozen=True, kw_only=True)
class DeliveryPlan:
    """What a loader has to deliver to one process in one phase of training.

    `first_step` and `first_epoch` say where the phase begins, `cursor` the global step to go on from;
    the length is counted from `first_step`, in epochs or in steps. With `always_some` a process whose own
    lanes are all empty in a small batch is given another's, since every process has to compute something.
    """

    seed: int
    num_lanes: int
    lanes: range
    first_step: int
    first_epoch: int
    cursor: int
    num_epochs: int | None
    num_steps: int | None
    always_some: bool = False
    extra_lane: Callable[[int, int], int | None] | None = None
    """From step and number of samples: a lane to deliver after this process's own ones, or None."""

    def __post_init__(self) -> None:
        if self.num_lanes < 1:
            raise UsageError(
                f"a plan needs at least one lane, got num_lanes={self.num_lanes}. Pass 1 or more."
            )
        if self.lanes.step < 1 or self.lanes.start < 0 or self.lanes.stop > self.num_lanes:
            raise UsageError(
                f"lanes must be a range inside [0, {self.num_lanes}), got {self.lanes}."
                " Pass range(first, last + 1) of the lanes that this process computes."
            )
        if (self.num_epochs is None) == (self.num_steps is None):
            raise UsageError(
                f"a plan is as long as its epochs or its steps, got num_epochs={self.num_epochs} and"
                f" num_steps={self.num_steps}. Pass exactly one of them."
            )
        length = self.num_steps if self.num_epochs is None else self.num_epochs
        if length is not None and length < 0:
            raise UsageError(f"a plan cannot have a negative length, got {length}. Pass 0 or more.")
        if not 0 <= self.first_step <= self.cursor:
            raise UsageError(
                f"a phase begins at step 0 or later and continues from its own steps, got first_step="
                f"{self.first_step} and cursor={self.cursor}. Pass 0 <= first_step <= cursor."
            )


class Request(NamedTuple):
    """What to fetch for one lane: the samples at positions start to stop of the epoch's order."""

    step: int
    epoch: int
    lane: int
    start: int
    stop: int


Cut = tuple[int, int, int]
"""One lane's slice of a global batch: lane, start, stop."""


def cut_into_lanes(num_samples: int, plan: DeliveryPlan) -> list[Cut]:
    """Return this process's non-empty lanes of a global batch and the slice of it that each takes."""
    # bits: the cut depends on the number of lanes alone, never on processes or workers.
    bounds = [lane * num_samples // plan.num_lanes for lane in range(plan.num_lanes + 1)]
    cuts = [(lane, bounds[lane], bounds[lane + 1]) for lane in range(plan.num_lanes)]
    filled = [cut for cut in cuts if cut[1] < cut[2]]
    own = [cut for cut in filled if cut[0] in plan.lanes]
    return filled[:1] if plan.always_some and not own else own


def with_extra(cuts: list[Cut], plan: DeliveryPlan, *, step: int, num_samples: int) -> list[Cut]:
    """Return the cuts of one step with that of the extra lane, if the plan has one there."""
    lane = plan.extra_lane(step, num_samples) if plan.extra_lane is not None else None
    if lane is None:
        return cuts
    return [*cuts, (lane, lane * num_samples // plan.num_lanes, (lane + 1) * num_samples // plan.num_lanes)]


def filled_lanes(num_samples: int, *, num_lanes: int) -> list[int]:
    """Return the lanes of a global batch that have samples.

    >>> filled_lanes(3, num_lanes=4)
    [1, 2, 3]
    """
    bounds = [lane * num_samples // num_lanes for lane in range(num_lanes + 1)]
    return [lane for lane in range(num_lanes) if bounds[lane] < bounds[lane + 1]]


class PlannedStep(NamedTuple):
    """One step of a plan over a dataset of known length, before anything is fetched."""

    step: int
    epoch: int
    is_epoch_end: bool
    num_samples: int
    start: int
    cuts: list[Cut]


def count_steps(num_samples: int, *, batch_size: int, drop_last: bool) -> int:
    """Return the number of steps in one epoch."""
    return num_samples // batch_size if drop_last else -(-num_samples // batch_size)


def steps_of(
    plan: DeliveryPlan, *, num_samples: int, batch_size: int, drop_last: bool
) -> Iterator[PlannedStep]:
    """Yield the plan's steps from the cursor on: resume is arithmetic."""
    steps_per_epoch = count_steps(num_samples, batch_size=batch_size, drop_last=drop_last)
    last = steps_per_epoch - 1
    whole = cut_into_lanes(batch_size, plan)
    rest = min(batch_size, num_samples - last * batch_size)
    cuts_of_rest = cut_into_lanes(rest, plan)
    first_step, first_epoch = plan.first_step, plan.first_epoch
    length = plan.num_steps if plan.num_epochs is None else plan.num_epochs * steps_per_epoch
    assert length is not None
    for step in range(plan.cursor, first_step + length):
        epoch, at = divmod(step - first_step, steps_per_epoch)
        size, cuts = (rest, cuts_of_rest) if at == last else (batch_size, whole)
        cuts = with_extra(cuts, plan, step=step, num_samples=size)
        yield PlannedStep(step, first_epoch + epoch, at == last, size, at * batch_size, cuts)
