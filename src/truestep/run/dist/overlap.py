"""Gradients summed while backward still runs: DDP with the tree as its communication hook.

DDP fills buckets and tells when one is complete; a thread of this process then sums it over all processes.
"""

import copy
import queue
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from truestep.errors import UsageError
from truestep.run.dist.flat import FlatSum
from truestep.run.dist.reduce import TreeReduce, neutral
from truestep.run.dist.schedule import Schedule

Bucket = torch.futures.Future[torch.Tensor]
"""The sum of a bucket, some time."""


class ReduceThread:
    """One thread that sums buckets over processes in the order they are handed in, the same on all."""

    def __init__(self, tree: TreeReduce) -> None:
        self._tree = tree
        self._failure: Exception | None = None
        self._jobs: queue.SimpleQueue[tuple[list[torch.Tensor], Bucket] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="truestep-reduce", daemon=True)
        self._thread.start()

    def send(self, parts: list[torch.Tensor]) -> Bucket:
        """Begin to sum; the last part holds the sum when it is done."""
        done: Bucket = torch.futures.Future()
        self._jobs.put((parts, done))
        return done

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            parts, done = job
            try:
                if self._failure is None:
                    self._tree.all_reduce(parts, into=len(parts) - 1)
            except Exception as error:  # noqa: BLE001 - raised again by `check`
                self._failure = error
            # Also after a failure: DDP takes an exception here for a value, and fails to make sense of it.
            done.set_result(parts[-1])

    def check(self) -> None:
        """Raise what went wrong in the thread. What was to be summed is not to be used then."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the thread."""
        self._jobs.put(None)
        self._thread.join()


class _Inner(nn.Module):
    """What DDP wraps: the model's parameters, and its forward without the model's own hooks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.run: Callable[..., Any] = model.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class _Forward:
    """The model's forward through DDP. A deep copy of the model (an EMA) has the plain one again."""

    def __init__(self, parallel: DistributedDataParallel, plain: Callable[..., Any]) -> None:
        self.parallel, self.plain = parallel, plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return self.parallel(*args, **kwargs)
        return self.plain(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.plain, memo)


def wrap(model: nn.Module) -> DistributedDataParallel:
    """Let a model's forward run through DDP; the model itself, its names and its hooks stay what they are."""
    plain = model.forward
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames broadcast_buffers
        parallel = DistributedDataParallel(
            _Inner(model), broadcast_buffers=False, gradient_as_bucket_view=True
        )
    model.forward = _Forward(parallel, plain)
    return parallel


def _unwrap(model: nn.Module) -> None:
    """Give a model the forward back that it had before `wrap`."""
    wrapped = vars(model).get("forward")
    if isinstance(wrapped, _Forward):
        del vars(model)["forward"]
        if wrapped.plain != model.forward:  # it had one of its own, beside its class's
            model.forward = wrapped.plain


class OverlapSum:
    """Sums the gradients of one model bucket by bucket in the backward pass of this process's last lane.

    Without a thread of its own buckets are summed by the backend's own all-reduce, in its own order.
    """

    def __init__(
        self, parallel: DistributedDataParallel, tree: TreeReduce, *, reduce_thread: ReduceThread | None
    ) -> None:
        self._parallel, self._reduce_thread, self._tree = parallel, reduce_thread, tree
        self.parameters = [item for item in parallel.parameters() if item.requires_grad]
        self._places = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        self._flat = FlatSum(self.parameters, self._tree)
        self._overlaps = self._is_sending = False
        self._num_turns = 0
        self._seen: set[int] = set()
        parallel.register_comm_hook(self, _hook)

    witness = 0
    """Of gradients that are not in `parameter.grad`: none are, where a witness is wanted."""

    @property
    def sends_early(self) -> bool:
        """Whether gradients leave while backward runs, so that a lane can have only one."""
        return self._overlaps

    def begin(self, schedule: Schedule, *, may_overlap: bool) -> None:
        """Start a pass. Where a lane is empty nothing overlaps: some process may have no backward at all."""
        is_armed = self._overlaps and len(self._seen) < len(self.parameters)
        if is_armed or self._reduce_thread is None:
            # The last lane's forward told DDP to expect a backward that never came (a generator whose output
            # only the critic learned from). It would take this pass's first lane for it.
            # bits: it also forgets the order in which gradients came, by which DDP rebuilds its buckets after
            # a process's first step. An all-reduce would then sum in another order: a resumed run would
            # differ. The tree does not care which bucket a parameter is in.
            self._parallel.reducer._reset_state()
        self._overlaps = may_overlap and schedule.is_full
        self._num_turns = len(schedule.lanes_of(self._tree.rank))
        self._seen.clear()

    def begin_lane(self, turn: int | None, *, is_watched: bool = False) -> None:  # noqa: ARG002
        """Start a lane; in the last one buckets are summed over processes as they fill."""
        is_last = turn == self._num_turns - 1
        self._parallel.require_backward_grad_sync = self._is_sending = self._overlaps and is_last

    def end_lane(self, lane: int | None) -> None:
        """Take one lane's gradients into the sum, unless its buckets are on their way already."""
        self._parallel.require_backward_grad_sync = False
        if not self._is_sending:
            self._flat.end_lane(lane)

    def on_bucket(self, bucket: dist.GradBucket) -> Bucket:  # type: ignore[name-defined]
        """Add what this process's earlier lanes gave, and send the bucket off."""
        places = [self._places[id(parameter)] for parameter in bucket.parameters()]
        self._seen.update(places)
        if len(self._seen) == len(self.parameters):
            # A forward after that is not learned from (one whose output is only logged). With it DDP would
            # expect a backward, and take that of a later lane for it.
            self._parallel.require_backward_grad_sync = False
        if self._reduce_thread is None:
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            total: Bucket = work.get_future().then(lambda future: future.value()[0])
            return total
        first = self._tree.nodes[-1][0]
        parts: list[torch.Tensor] = []
        for start, _, earlier in reversed(self._flat.lanes.open):
            gradients = [earlier[place] for place in places]
            if start >= first:
                # bits: a sum of two does not depend on which of them is left, so the bucket can take it in.
                pairs = [(a, b) for a, b in zip(bucket.gradients(), gradients, strict=True) if b is not None]
                torch._foreach_add_([a for a, _ in pairs], [b for _, b in pairs])
            else:
                parts.insert(0, _flatten(gradients, like=bucket.gradients()))
        buffer = bucket.buffer()
        return self._reduce_thread.send([*parts, buffer])

    def finish(self) -> None:
        """See that every bucket was summed; do it now if nothing overlapped."""
        if not self._overlaps:
            self._flat.finish()
            return
        had_earlier = any(gradient is not None for *_, node in self._flat.lanes.open for gradient in node)
        self._flat.lanes.clear()
        if self._reduce_thread is not None:
            self._reduce_thread.check()
        if len(self._seen) == len(self.parameters):
            if self._reduce_thread is not None:
                # DDP does this in the next forward, with a collective: without lanes there is no forward.
                self._parallel.reducer._rebuild_buckets()
            return
        if not self._seen and not had_earlier:
            return
        names = {id(parameter): name for name, parameter in self._parallel.module.model.named_parameters()}
        missing = [
            names.get(id(parameter), "?")
            for place, parameter in enumerate(self.parameters)
            if place not in self._seen
        ]
        raise UsageError(
            f"{len(missing)} parameters got no gradient in this lane, so their buckets never filled: "
            f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}. Pass parallel='flat' to "
            f"run.place for a model of which some parts are not always used, or freeze them with "
            f"requires_grad_(False)."
        )

    def clear(self) -> None:
        """Forget all gradients: what the next backward gives is new."""
        self._flat.clear()

    def close(self) -> None:
        """Let the model compute by itself again: its backward would wait for sums that nobody makes."""
        self._parallel.reducer._reset_state()
        _unwrap(self._parallel.module.model)


def _hook(state: OverlapSum, bucket: dist.GradBucket) -> Bucket:  # type: ignore[name-defined]
    return state.on_bucket(bucket)


def _flatten(gradients: list[torch.Tensor | None], *, like: list[torch.Tensor]) -> torch.Tensor:
    parts = [
        neutral(view) if gradient is None else gradient
        for gradient, view in zip(gradients, like, strict=True)
    ]
    return torch.cat([part.reshape(-1) for part in parts])
