"""Reading a stream: a dataset without a length, read from front to back by one reader.

Owns where a stream stands after each step. Leaves processes to `workers`, datasets with a length to `fetch`.
"""

import copy
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from truestep.base import rng
from truestep.errors import StateError, UsageError
from truestep.run.data.fetch import Collate, one_thread
from truestep.run.data.plan import Batch, DeliveryPlan, LaneBatch, cut_into_lanes, with_extra

State = dict[str, Any]
"""Where a stream stands: next step, its epoch, whether that epoch has begun, and the dataset's own state."""


class Lease:
    """The right to read a stream in this process: the newest feed has it, since they share the dataset."""

    is_held = True


@dataclass(frozen=True, kw_only=True)
class StreamReader:
    """Reads a plan's steps from a stream, together with the state from which the next step can be read.

    A state is taken right before a step's first sample is drawn, and all of a step's samples are drawn under
    that step's seed. A batch is held back until the next one is read: only then is it known whether its epoch
    goes on, and the state in between belongs to neither. So nothing depends on where a run was interrupted.

    Between epochs the dataset is asked for a new iterator and goes on from the state it is in. If it then has
    nothing to give (it still stands at its end), it is put back to `initial`, the state it had at first.
    """

    dataset: Any
    plan: DeliveryPlan
    batch_size: int
    drop_last: bool
    collate: Collate | None
    initial: Any
    start: State
    lease: Lease

    def __iter__(self) -> Iterator[tuple[Batch, State]]:
        state = self.start
        while not self._is_over(state):
            for batch, after in self._read_epoch(state):
                yield batch, after
                state = after

    def _is_over(self, state: State) -> bool:
        plan = self.plan
        if plan.num_steps is not None:
            return bool(state["step"] >= plan.first_step + plan.num_steps)
        assert plan.num_epochs is not None
        return bool(state["epoch"] >= plan.first_epoch + plan.num_epochs)

    def _read_epoch(self, state: State) -> Iterator[tuple[Batch, State]]:
        step, epoch = state["step"], state["epoch"]
        with one_thread():
            samples, has_ended, source = self._read_first(state)
            held = self._batch(step, epoch, samples)
        while not has_ended:
            step += 1
            before = {"step": step, "epoch": epoch, "is_begun": True, "stream": self._snapshot()}
            is_last = self._is_over(before)
            with one_thread():
                # Past the plan's end a look is enough; only drop_last needs to know if a whole batch follows.
                limit = 1 if is_last and not self.drop_last else self.batch_size
                samples, has_ended = self._read(source, step, epoch, limit)
                if not samples:
                    break
                following = None if is_last else self._batch(step, epoch, samples)
            yield held, before
            if following is None:
                return
            held = following
        stream = self._snapshot()
        if _is_empty(stream):
            raise UsageError(
                f"the stream {type(self.dataset).__name__} has an end but an empty state_dict(), so a resumed"
                " run would repeat data. Let it return the position after the last sample given."
            )
        after = {"step": held.step + 1, "epoch": epoch + 1, "is_begun": False, "stream": stream}
        yield held._replace(is_epoch_end=True), after

    def _read_first(self, state: State) -> tuple[list[Any], bool, Iterator[Any]]:
        step, epoch = state["step"], state["epoch"]
        source = self._open(epoch, state["stream"], is_begun=state["is_begun"])
        samples, has_ended = self._read(source, step, epoch, self.batch_size, is_first=True)
        if not samples and not state["is_begun"]:
            source = self._open(epoch, self.initial, is_begun=False)
            samples, has_ended = self._read(source, step, epoch, self.batch_size, is_first=True)
        if not samples:
            wanted = f"at least {self.batch_size} samples (drop_last)" if self.drop_last else "a sample"
            raise UsageError(
                f"the stream {type(self.dataset).__name__} gave no step at step {step} of epoch {epoch},"
                f" expected {wanted}."
                " Its __iter__ has to start over for each epoch and continue after load_state_dict()."
            )
        return samples, has_ended, source

    def _open(self, epoch: int, stream: Any, *, is_begun: bool) -> Iterator[Any]:
        self._check_lease()
        dataset = self.dataset
        set_epoch = getattr(dataset, "set_epoch", None)
        # bits: what the dataset draws while it is opened must not depend on what was drawn before.
        rng.seed_generators(self.plan.seed, "stream epoch", epoch)
        # A state of the epoch itself comes last. One from before it may hold the old epoch, so the new
        # number comes last there.
        if set_epoch is not None and is_begun:
            set_epoch(epoch)
        dataset.load_state_dict(copy.deepcopy(stream))
        if set_epoch is not None and not is_begun:
            set_epoch(epoch)
        return iter(dataset)

    def _read(
        self, source: Iterator[Any], step: int, epoch: int, limit: int, *, is_first: bool = False
    ) -> tuple[list[Any], bool]:
        self._check_lease()
        # bits: one seed for all samples of a step, whichever of them is read ahead.
        rng.seed_generators(self.plan.seed, "stream", step)
        samples: list[Any] = []
        try:
            if is_first:
                samples += self._watched_first(source)
            # One by one: after a failure the length says which sample it was.
            for sample in islice(source, limit - len(samples)):
                samples.append(sample)
        except Exception as error:
            error.add_note(
                f"while reading sample {len(samples)} of step {step} of epoch {epoch} from the stream"
            )
            raise
        has_ended = len(samples) < limit
        return ([] if has_ended and self.drop_last else samples), has_ended

    def _watched_first(self, source: Iterator[Any]) -> list[Any]:
        before = pickle.dumps(self.dataset.state_dict())
        samples = list(islice(source, 1))
        after = self.dataset.state_dict()
        # An empty state is honest where there is no end: everything is drawn from the seeded generators.
        if samples and not _is_empty(after) and pickle.dumps(after) == before:
            raise UsageError(
                f"state_dict() of the stream {type(self.dataset).__name__} did not change when a sample was"
                " drawn, so a resumed run would repeat it. Count the sample before `yield`, not after."
            )
        return samples

    def _check_lease(self) -> None:
        if not self.lease.is_held:
            raise UsageError(
                f"another feed has begun to read the stream {type(self.dataset).__name__} in this process,"
                " and both would move the same dataset. Pass workers=1, or use two Loaders over two datasets."
            )

    def _snapshot(self) -> Any:
        # A state may share its lists and tensors with the dataset, which goes on reading.
        return copy.deepcopy(self.dataset.state_dict())

    def _batch(self, step: int, epoch: int, samples: list[Any]) -> Batch:
        cuts = cut_into_lanes(len(samples), self.plan)
        lanes = [
            LaneBatch(lane, stop - start, self._data(step, lane, samples[start:stop]))
            for lane, start, stop in with_extra(cuts, self.plan, step=step, num_samples=len(samples))
        ]
        return Batch(step, epoch, False, len(samples), lanes)

    def _data(self, step: int, lane: int, samples: list[Any]) -> Any:
        if self.collate is None:
            return samples[0]
        # bits: a process collates its own lanes only, so each needs a seed of its own.
        rng.seed_generators(self.plan.seed, "stream collate", step, lane)
        try:
            return self.collate(samples)
        except Exception as error:
            error.add_note(f"while collating lane {lane} of step {step} from the stream")
            raise


def _is_empty(state: Any) -> bool:
    return isinstance(state, Mapping) and not state


def start_of(plan: DeliveryPlan, state: Mapping[str, Any] | None, *, initial: Any) -> State:
    """Return the state to read from: the one given, or the stream's first at the start of a phase."""
    if state:
        if state.get("step") != plan.cursor:
            raise StateError(
                f"the stream's state belongs to step {state.get('step')}, the plan continues from"
                f" {plan.cursor}. Pass the state that Feed.state_dict() gave at that step."
            )
        return dict(state)
    if plan.cursor != plan.first_step:
        raise StateError(
            f"a stream cannot be entered at step {plan.cursor} without its state, only at step"
            f" {plan.first_step}. Pass the state that Feed.state_dict() gave at that step."
        )
    return {"step": plan.cursor, "epoch": plan.first_epoch, "is_begun": False, "stream": initial}


def check_stream(dataset: Any) -> None:
    """Raise if a stream cannot say where it stands."""
    missing = [
        name for name in ("state_dict", "load_state_dict") if not callable(getattr(dataset, name, None))
    ]
    if missing:
        raise UsageError(
            f"the stream {type(dataset).__name__} has no {' and no '.join(missing)}, so a resumed run would"
            " repeat or lose data. Add state_dict(), which returns the position after the last sample given,"
            " and load_state_dict(state), after which __iter__ continues from there."
        )
