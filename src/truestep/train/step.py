"""One global step: the lanes of a batch, their backward passes, the update.

What the user's loop holds in its hand. Knows nothing of snapshots, records or the terminal.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from truestep.data import Batch, LaneBatch
from truestep.errors import NonFiniteError, UsageError
from truestep.rng import LazySeeds
from truestep.train.gradients import FiniteCheck, Gradients, clip, scale, total_weight
from truestep.train.journal import Journal, Scalar, Term
from truestep.train.place import move

NonFinite = Literal["stop", "skip"]

NONFINITE_ADVICE = (
    "The record holds the losses up to it; a smaller learning rate or clip_norm= may help. "
    "Run(nonfinite='skip') leaves such steps out and counts them."
)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a step works with; the same for all steps of a loop."""

    seeds: LazySeeds
    num_lanes: int
    device: torch.device
    gradients: Gradients
    is_finite: FiniteCheck
    journal: Journal
    scaler: torch.amp.GradScaler | None
    nonfinite: NonFinite
    tracked: Collection[int]
    """Identities of the tracked objects."""

    def check_scheduler(self, scheduler: LRScheduler) -> None:
        """Refuse a scheduler that resuming would lose, or that does not move with steps."""
        if isinstance(scheduler, ReduceLROnPlateau):
            raise UsageError(
                "ReduceLROnPlateau moves by a metric, not by steps: leave scheduler= out of step.update and "
                "call scheduler.step(metric) after run.evaluate(...). Track it like any other scheduler."
            )
        if id(scheduler) not in self.tracked:
            raise UsageError(
                f"this {type(scheduler).__name__} is not tracked, so a resumed run would begin it anew. "
                f"Call run.track(scheduler=scheduler) before run.steps()."
            )


class Step:
    """One global step. Iterate over it for this process's lanes, call `backward` on each, then `update`."""

    # Defaults of the class, so that making a step sets as little as possible.
    is_updated = False
    on_first_lane: Callable[[], None] | None = None
    _lane: Any = None
    _num_passes = 0
    _is_reduced = _is_bad = False
    _factor: float | torch.Tensor = 1.0

    def __init__(self, parts: Parts, batch: Batch) -> None:
        self._parts = parts
        self.batch = batch
        self._on_cpu = parts.device.type == "cpu"
        self._weights: dict[int, Scalar] = {}
        self.terms: list[Term] = []

    @property
    def index(self) -> int:
        """The number of this step, counted from 0 over the whole run."""
        return self.batch.step

    @property
    def epoch(self) -> int:
        """The epoch this step belongs to, counted from 0."""
        return self.batch.epoch

    @property
    def is_epoch_end(self) -> bool:
        """Whether this is the last step of its epoch."""
        return self.batch.is_epoch_end

    @property
    def num_samples(self) -> int:
        """Samples in the whole batch, over all lanes and processes."""
        return self.batch.num_samples

    def __iter__(self) -> Iterator[Any]:
        self._parts.gradients.clear()
        if self._num_passes:
            self._weights, self._is_reduced, self._is_bad = {}, False, False
        self._num_passes += 1
        lanes = self.batch.lanes
        if self._parts.num_lanes > 1:
            return self._iterate(lanes)
        # One lane: nothing has to happen between lanes, and what follows the last one can wait for `update`.
        return iter((self._enter(lanes[0]),))

    def _iterate(self, lanes: list[LaneBatch]) -> Iterator[Any]:
        for lane in lanes:
            yield self._enter(lane)
            self._leave()
            self._parts.gradients.end_lane(lane.lane)

    def _enter(self, lane: LaneBatch) -> Any:
        self._lane = lane
        # bits: what is drawn in a lane depends on the step, the lane and the pass, on nothing else.
        self._parts.seeds.set(self.batch.step, lane.lane, self._num_passes)
        return lane.data if self._on_cpu else move(lane.data, self._parts.device)

    def _leave(self) -> None:
        self._lane = None
        self._parts.seeds.leave()
        if self.on_first_lane is not None:
            job, self.on_first_lane = self.on_first_lane, None
            job()

    def backward(
        self, loss: torch.Tensor, *, weight: Scalar | None = None, retain_graph: bool = False
    ) -> None:
        """Compute the gradients of this lane's share of the batch's loss.

        `loss` is a mean over the lane; `weight` says over how many things (default: the lane's samples).
        With padded tokens pass their number without padding: the gradient is then the mean over all
        tokens of the whole batch, not the mean of the lanes' means. Nothing has to be divided by hand.
        """
        lane = self._lane
        if lane is None:
            raise UsageError(
                "step.backward(loss) belongs inside `for batch in step:`, once the lane's loss is known."
            )
        if not (isinstance(loss, torch.Tensor) and loss.requires_grad and loss.numel() == 1):
            raise UsageError(_unusable(loss))
        if weight is None:
            weight = lane.num_samples
        if self._weights.setdefault(lane.lane, weight) is not weight:
            self._check_weight(lane.lane, weight)
        value: Scalar = loss.item() if self._on_cpu else loss.detach()
        if value.__class__ is float and not math.isfinite(value):
            self._is_bad = True
        self.terms.append((lane.lane, value, weight))
        share = weight / self.batch.num_samples
        if share.__class__ is not float or share != 1.0:  # else the lane is the whole batch
            loss = loss * share
        if self._parts.scaler is not None:
            loss = self._parts.scaler.scale(loss)
        loss.backward(retain_graph=retain_graph)

    def _check_weight(self, lane: int, weight: Scalar) -> None:
        former = self._weights[lane]
        if isinstance(former, torch.Tensor) or isinstance(weight, torch.Tensor) or former != weight:
            raise UsageError(
                f"several losses of one lane must have one weight, got {former} and {weight}. "
                f"Add the losses and call step.backward once, or pass the same weight."
            )

    def update(
        self,
        optimizer: Optimizer,
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        scheduler: LRScheduler | None = None,
    ) -> bool:
        """Update the optimizer's parameters with the gradient of the whole batch; return whether it was done.

        It is not done where a loss or gradient is not finite and the run was told to skip such steps, or
        where the fp16 scaler is still looking for its scale. The scheduler moves only with the optimizer.
        """
        parameters = self._parts.gradients.of(optimizer)
        if scheduler is not None:
            self._parts.check_scheduler(scheduler)
        if not self._is_reduced:
            self._reduce()
        gradients = [grad for parameter in parameters if (grad := parameter.grad) is not None]
        if not gradients:
            raise UsageError(
                f"no parameter of this {type(optimizer).__name__} has a gradient. Does the loss depend on "
                f"them, and was step.backward(loss) called in this pass?"
            )
        if self._parts.scaler is not None:
            is_done = self._update_scaled(optimizer, gradients, clip_norm, clip_value)
        else:
            if self._factor.__class__ is not float or self._factor != 1.0:
                scale(gradients, self._factor)
            is_finite = self._parts.is_finite
            is_deferred = is_finite.defers and hasattr(optimizer, "_step_supports_amp_scaling")
            if not is_deferred and (self._is_bad or not is_finite(gradients)):
                return self._refuse()
            if clip_norm is not None or clip_value is not None:
                self._clip(parameters, clip_norm, clip_value)
            if is_deferred:
                self._step_on_device(optimizer, gradients)
            else:
                optimizer.step()
            is_done = True
        if is_done and scheduler is not None:
            scheduler.step()
        self.is_updated = True
        return is_done

    def _reduce(self) -> None:
        if self._lane is not None and self._parts.num_lanes == 1:
            self._leave()
        if not self._weights or self._lane is not None:
            raise UsageError(
                "step.update(optimizer) comes after `for batch in step: step.backward(loss)`, "
                "once all lanes of the step have had their backward pass."
            )
        if self._parts.num_lanes > 1:
            self._parts.gradients.reduce()
        self._is_reduced = True
        # Exactly 1.0 unless weights were given or a lane was left out.
        self._factor = self.batch.num_samples / total_weight(self._weights)

    def _clip(self, parameters: list[torch.nn.Parameter], norm: float | None, value: float | None) -> None:
        total = clip(parameters, norm=norm, value=value)
        if total is not None:
            self.log(grad_norm=total)

    def _step_on_device(self, optimizer: Optimizer, gradients: list[torch.Tensor]) -> None:
        losses = [loss for _, loss, _ in self.terms if isinstance(loss, torch.Tensor)]
        is_sticky = self._parts.nonfinite == "stop"
        flag = self._parts.is_finite.step(optimizer, gradients, losses=losses, is_sticky=is_sticky)
        self.log(nonfinite=flag)

    def _update_scaled(
        self, optimizer: Optimizer, gradients: list[torch.Tensor], norm: float | None, value: float | None
    ) -> bool:
        scaler = self._parts.scaler
        assert scaler is not None
        scaler.unscale_(optimizer)
        scale(gradients, self._factor)
        self._clip(self._parts.gradients.of(optimizer), norm, value)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        is_done = scaler.get_scale() >= before
        self.log(loss_scale=before)
        if not is_done:
            self.log(skipped=1.0)
        return is_done

    def _refuse(self) -> bool:
        where = self._find_nonfinite()
        if self._parts.nonfinite == "stop":
            raise NonFiniteError(
                f"step {self.index}: {where}. The weights were not touched. {NONFINITE_ADVICE}"
            )
        self.log(skipped=1.0)
        self.is_updated = True
        return False

    def _find_nonfinite(self) -> str:
        for lane, loss, _ in self.terms:
            if not math.isfinite(float(loss)):
                return f"the loss of lane {lane} is {float(loss)}"
        for name, gradient in self._parts.gradients.named():
            num_bad = gradient.numel() - int(torch.isfinite(gradient).sum())
            if num_bad:
                return f"the gradient of {name} is not finite in {num_bad:,} of {gradient.numel():,} values"
        return "a gradient is not finite"

    def log(self, **values: Scalar) -> None:
        """Write values of this step into the record. Tensors are fetched later, in bulk."""
        for name, value in values.items():
            kept = value.detach() if isinstance(value, torch.Tensor) else value
            self._parts.journal.add_value(name, kept, step=self.batch.step)


def _unusable(loss: object) -> str:
    if not isinstance(loss, torch.Tensor):
        return (
            f"step.backward needs the loss as a tensor, got {type(loss).__name__}. Was .item() called on it?"
        )
    if loss.numel() != 1:
        return f"step.backward needs one number, got a loss of shape {tuple(loss.shape)}. Take its mean()."
    return (
        "this loss does not depend on any parameter (requires_grad is False): it was detached, made anew "
        "with torch.tensor(...), or computed under no_grad. Pass the loss as the model's output gave it."
    )
