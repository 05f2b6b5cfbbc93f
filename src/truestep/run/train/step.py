"""One global step: the lanes of a batch, their backward passes, the update.

What the user's loop holds in its hand. Knows nothing of snapshots, records or the terminal.
"""

import contextlib
import math
import shlex
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from truestep.base.rng import LazySeeds
from truestep.errors import NonFiniteError, UsageError, shared
from truestep.record import step_number
from truestep.run.data import Batch, LaneBatch, filled_lanes
from truestep.run.dist import Schedule, World, schedule
from truestep.run.train.audit import Assignment, Audit, mix
from truestep.run.train.carried import CarriedState
from truestep.run.train.exchange import Exchange, Word
from truestep.run.train.gradients import (
    FiniteCheck,
    Gradients,
    clip_in_order,
    local,
    scale,
    total_norm,
    total_weight,
)
from truestep.run.train.journal import NONFINITE, Journal, Scalar, Term
from truestep.run.train.norms import Norms
from truestep.run.train.place import move

NonFinite = Literal["stop", "skip"]

_TOO_EARLY = (
    "step.update(optimizer) comes after `for batch in step: step.backward(loss)`, "
    "once all lanes of the step have had their backward pass."
)

_STALE_GRAPH = ("through the graph a second time", "modified by an inplace operation")
_COMPUTE_AGAIN = (
    "Does this loss use a value of another lane, of another pass of the step, or from before an update? "
    "Each pass `for batch in step:` runs once per lane, so compute everything that the loss depends on "
    "inside it: a GAN's generator makes its samples once in each pass."
)

NONFINITE_ADVICE = (
    "The record holds the losses up to it; a smaller learning rate or clip_norm= may help. "
    "Run(nonfinite='skip') leaves such steps out and counts them."
)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a step works with; the same for all steps of a loop."""

    world: World
    exchange: Exchange
    seeds: LazySeeds
    num_lanes: int
    norms: Norms
    carried: CarriedState | None
    """Looks for state that lanes change; None on one process, where that is fine."""
    is_sharded: bool
    """Whether a model is sharded: then all processes compute in step, and gradients are in parts."""
    is_dealt: bool
    """Whether lanes are dealt out in turn, not in contiguous shares."""
    device: torch.device
    gradients: Gradients
    is_finite: FiniteCheck
    journal: Journal
    scaler: torch.amp.GradScaler | None
    nonfinite: NonFinite
    tracked: Mapping[str, Any]
    audit: Audit
    folder: Path
    """The run's, for messages."""

    def look_at(self, number: int) -> str:
        """Return the advice to look at a step, counted from 1."""
        return f"Look at that step: truestep replay --step {number} {shlex.quote(str(self.folder))}"

    @cached_property
    def schedule_of(self) -> Callable[[int], Schedule]:
        """Who computes which lane, by the number of samples in the batch; there are few different ones."""
        size, num_lanes, is_dealt = self.world.size, self.num_lanes, self.is_dealt

        @cache
        def of(num_samples: int) -> Schedule:
            filled = filled_lanes(num_samples, num_lanes=num_lanes)
            return schedule(filled, size=size, num_lanes=num_lanes, is_dealt=is_dealt)

        return of

    def check_scheduler(self, scheduler: LRScheduler) -> None:
        """Refuse a scheduler that resuming would lose, or that does not move with steps."""
        if isinstance(scheduler, ReduceLROnPlateau):
            raise UsageError(
                "ReduceLROnPlateau moves by a metric, not by steps: leave scheduler= out of step.update and "
                "call scheduler.step(metric) after run.evaluate(...). Track it like any other scheduler."
            )
        if all(item is not scheduler for item in self.tracked.values()):
            raise UsageError(
                f"this {type(scheduler).__name__} is not tracked, so a resumed run would start it over. "
                f"Call run.track(scheduler=scheduler) before run.steps()."
            )


class Step:
    """One global step. Iterate over it for this process's lanes, call `backward` on each, then `update`."""

    # Defaults of the class, so that making a step sets as little as possible.
    is_updated = False
    on_witness: Callable[[str], None] | None = None
    agreed: Word | None = None
    """What all processes agreed on in the last pass; None on one process."""
    _lane: Any = None
    _is_filler = _is_audit = False
    _witness: int | None = None
    _num_passes = 0
    _is_reduced = _is_bad = _is_scaled = _is_repeated = False
    _factor: float | torch.Tensor = 1.0

    def __init__(self, parts: Parts, batch: Batch) -> None:
        self._parts = parts
        self.batch = batch
        self._on_cpu = parts.device.type == "cpu"
        self._weights: dict[int, Scalar] = {}
        self._losses: dict[int, Scalar] = {}
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
    def is_begun(self) -> bool:
        """Whether iterating over its lanes has begun."""
        return self._num_passes > 0

    @property
    def num_samples(self) -> int:
        """Samples in the whole batch, over all lanes and processes."""
        return self.batch.num_samples

    def __iter__(self) -> Iterator[Any]:
        if self._num_passes:
            self.settle()
            self._weights, self._losses = {}, {}
            self._is_reduced = self._is_bad = self._is_repeated = False
        self._num_passes += 1
        self._parts.seeds.leave()
        if self._parts.num_lanes > 1:
            return self._iterate(self.batch.lanes)
        # One lane: nothing has to happen between lanes, and what follows the last one can wait for `update`.
        self._parts.gradients.clear()
        return iter((self._enter(self.batch.lanes[0]),))

    def _iterate(self, lanes: list[LaneBatch]) -> Iterator[Any]:
        parts, gradients = self._parts, self._parts.gradients
        plan = parts.schedule_of(self.batch.num_samples)
        num_own = len(plan.lanes_of(parts.world.rank))
        first = min(lane for lane in plan.rounds[0] if lane is not None)
        audited = parts.audit.at(self.batch.step, self.batch.num_samples)
        if audited is not None and self._num_passes == 1:
            parts.audit.compare_replicas(parts.tracked, step=self.batch.step)
        has_watched = self.on_witness is not None or audited is not None
        gradients.begin(plan, number=self._num_passes, has_watched=has_watched)
        own = 0
        if audited is not None:
            own = yield from self._recompute(audited, [audited.auditor])
        for turn in range(len(plan.rounds) if parts.is_sharded else num_own):
            lane = lanes[min(turn, len(lanes) - 1)]
            # A process with fewer lanes keeps the others company: what it computes then is dropped.
            self._is_filler = turn >= num_own
            is_witness = lane.lane == first and self.on_witness is not None and not self._is_filler
            is_audited = audited is not None and lane.lane == audited.lane and not self._is_filler
            yield from self._run_lane(lane, turn, is_watched=is_witness or is_audited)
            if parts.norms and not self._is_filler:
                parts.norms.end_lane(lane.lane)
            if is_witness:
                self._witness = gradients.witness()
            if is_audited:
                own = mix(gradients.hashes())
            gradients.end_lane(None if self._is_filler else lane.lane)
        # bits: outside lanes the generators know nothing of which lanes ran in this process.
        parts.seeds.set(self.batch.step, self._num_passes)
        if audited is not None:
            yield from self._settle_audit(audited, own)

    def _run_lane(self, lane: LaneBatch, turn: int | None, *, is_watched: bool) -> Iterator[Any]:
        """Hand out one lane, with everything as it is at the beginning of each."""
        parts = self._parts
        parts.gradients.begin_lane(turn, is_watched=is_watched)
        if parts.carried is not None:
            parts.carried.begin(is_look=parts.audit.at(self.batch.step, self.batch.num_samples) is not None)
        if parts.norms:
            parts.norms.begin_lane()
        yield self._enter(lane)
        self._lane = None
        parts.seeds.leave()
        if parts.carried is not None:
            parts.carried.check()

    def _recompute(self, audited: Assignment, ranks: Collection[int]) -> Generator[Any, None, int]:
        """Let some processes compute the audited lane, for nothing but its hash, which is returned."""
        parts, lanes = self._parts, self.batch.lanes
        is_mine = parts.world.rank in ranks
        if not (is_mine or parts.is_sharded):
            return 0
        # bits: a sharded model is computed by all in step; those who are not asked keep company.
        self._is_filler, self._is_audit = True, is_mine
        lane = next(item for item in lanes if item.lane == audited.lane) if is_mine else lanes[0]
        yield from self._run_lane(lane, None, is_watched=is_mine)
        self._is_audit = False
        value = mix(parts.gradients.hashes()) if is_mine else 0
        parts.gradients.end_lane(None)
        return value

    def _settle_audit(self, audited: Assignment, own: int) -> Iterator[Any]:
        """Compare what owner and auditor have computed; if it differs, a third decides and the run ends."""
        audit, step = self._parts.audit, self.batch.step
        first = audit.exchange(own)
        if not audit.agrees(audited, first, step=step):
            again = yield from self._recompute(audited, audited.ranks)
            audit.fail_lane(audited, first=first, again=audit.exchange(again), step=step)

    def _enter(self, lane: LaneBatch) -> Any:
        self._lane = lane
        # bits: what is drawn in a lane depends on the step, the lane and the pass, on nothing else.
        self._parts.seeds.set(self.batch.step, lane.lane, self._num_passes)
        return lane.data if self._on_cpu else move(lane.data, self._parts.device)

    def backward(
        self, loss: torch.Tensor, *, weight: Scalar | None = None, retain_graph: bool = False
    ) -> None:
        """Compute the gradients of this lane's share of the batch's loss.

        `loss` is a mean over the lane; `weight` is over how many things (default: the lane's samples).
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
        if self._is_filler and not self._is_audit:
            self._differentiate(loss, retain_graph=retain_graph)
            return
        if weight is None:
            weight = lane.num_samples
        if not self._is_audit:
            self._take_in(lane.lane, loss, weight)
        share = weight / self.batch.num_samples
        if share.__class__ is not float or share != 1.0:  # else the lane is the whole batch
            loss = loss * share
        if self._parts.scaler is not None:
            loss = self._parts.scaler.scale(loss)
        self._differentiate(loss, retain_graph=retain_graph)

    def _differentiate(self, loss: torch.Tensor, *, retain_graph: bool) -> None:
        try:
            loss.backward(retain_graph=retain_graph)
        except RuntimeError as error:
            if any(sign in str(error) for sign in _STALE_GRAPH):
                error.add_note(_COMPUTE_AGAIN)
            raise

    def _take_in(self, lane: int, loss: torch.Tensor, weight: Scalar) -> None:
        """Note a loss of one lane, and what it weighs."""
        if lane in self._weights:
            self._is_repeated = True
            self._parts.gradients.check_repeated()
        if self._weights.setdefault(lane, weight) is not weight:
            self._check_weight(lane, weight)
        value: Scalar = loss.item() if self._on_cpu else loss.detach()
        if value.__class__ is float and not math.isfinite(value):
            self._is_bad = True
        self._note(lane, value, weight)

    def _note(self, lane: int, loss: Scalar, weight: Scalar) -> None:
        if self._parts.num_lanes == 1:
            self.terms.append((lane, loss, 1.0))
            return
        product = float(loss) * float(weight) if self._on_cpu else torch.as_tensor(loss).double() * weight
        self._losses[lane] = self._losses[lane] + product if lane in self._losses else product

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
        scheduler: LRScheduler | None = None,
    ) -> bool:
        """Update the optimizer's parameters with the gradient of the whole batch; return whether it was done.

        It is not done where a loss or gradient is not finite and the run skips such steps, or
        where the fp16 scaler is still looking for its scale. The scheduler moves only with the optimizer.
        A fused optimizer on a device skips such a step on the device, and nothing waits for its answer: True
        is returned, the scheduler moves, and the record lists later which steps were skipped.
        """
        parameters = self._parts.gradients.of(optimizer)
        if scheduler is not None:
            self._parts.check_scheduler(scheduler)
        if not self._is_reduced:
            self._reduce()
        self._parts.journal.add_rate(optimizer, step=self.batch.step)
        whole = [grad for parameter in parameters if (grad := parameter.grad) is not None]
        if not whole:
            raise UsageError(
                f"no parameter of this {type(optimizer).__name__} has a gradient. Does the loss depend on "
                f"them, and was step.backward(loss) called in this pass?"
            )
        gradients = [local(gradient) for gradient in whole] if self._parts.is_sharded else whole
        if self._parts.scaler is not None:
            is_done = self._update_scaled(optimizer, gradients, clip_norm)
        else:
            if self._factor.__class__ is not float or self._factor != 1.0:
                scale(gradients, self._factor)
            norm = self._norm(whole) if clip_norm is not None else None
            is_deferred = self._parts.is_finite.defers and hasattr(optimizer, "_step_supports_amp_scaling")
            if not is_deferred and (self._is_bad or not self._are_finite(gradients, norm)):
                return self._refuse()
            if norm is not None and clip_norm is not None:
                self._clip(parameters, clip_norm, norm)
            if is_deferred:
                self._step_on_device(optimizer, gradients)
            else:
                optimizer.step()
            is_done = True
        if is_done and scheduler is not None:
            scheduler.step()
        self.is_updated = True
        return is_done

    def _are_finite(self, gradients: list[torch.Tensor], norm: torch.Tensor | None) -> bool:
        """Sharded gradients are looked at by all processes together; else all look at the same."""
        # A finite norm has no other terms. All processes have the same norm.
        if norm is not None and math.isfinite(norm):
            return True
        is_finite = self._parts.is_finite(gradients)
        if not self._parts.is_sharded:
            return is_finite
        flag = torch.tensor([float(not is_finite)])
        self._parts.world.add(flag)
        return not flag.item()

    def _reduce(self) -> None:
        is_alone = self._parts.num_lanes == 1
        if is_alone:
            self._lane = None
        self._parts.seeds.leave()
        if self._lane is not None or self._num_passes == 0:
            raise UsageError(_TOO_EARLY)
        given = self._weights
        if self._parts.world.size > 1 and not is_alone:
            self._agree()
        total = self._check_weights(given)
        if is_alone:
            if self.on_witness is not None:
                self._witness = self._parts.gradients.witness()
        else:
            if self._parts.norms:
                self._parts.norms.finish(self._parts.world)
            self._parts.gradients.reduce()
            self.terms += [(lane, loss, self._weights[lane]) for lane, loss in self._losses.items()]
        self._is_reduced = True
        if self.on_witness is not None:
            job, self.on_witness = self.on_witness, None
            job(f"{self._witness:016x}")
        # Exactly 1.0 unless weights were given or a lane was left out.
        self._factor = self.batch.num_samples / total

    def _check_weights(self, given: dict[int, Scalar]) -> Scalar:
        """Return the weight of the whole batch; refuse a pass in which no lane counts."""
        if not given and not self._weights:
            raise UsageError(_TOO_EARLY)
        total = total_weight(self._weights.values()) if self._weights else 0.0
        if total.__class__ is float and not total:
            raise UsageError(
                f"all lanes of step {step_number(self.index)} have weight 0: their mean loss is 0 / 0. "
                f"Leave batches without targets out of the data, or give them weight=1 and a loss of 0."
            )
        return total

    def _agree(self) -> None:
        seeds = self._parts.seeds
        self.agreed = agreed = self._parts.exchange(
            Word(
                weights=self._weights,
                losses=self._losses,
                is_bad=self._is_bad,
                is_touched=seeds.is_touched,
                is_repeated=self._is_repeated,
                witness=self._witness,
            )
        )
        self._is_bad, seeds.is_touched, self._witness = agreed.is_bad, agreed.is_touched, agreed.witness
        self._parts.gradients.learn(self._num_passes, is_repeated=agreed.is_repeated)
        lanes = filled_lanes(self.batch.num_samples, num_lanes=self._parts.num_lanes)
        # A lane without weight is one that the loop left out.
        lanes = [lane for lane in lanes if not self._on_cpu or agreed.weights[lane]]
        self._weights = {lane: agreed.weights[lane] for lane in lanes}
        self._losses = {lane: agreed.losses[lane] for lane in lanes}

    def _norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Return the norm of all gradients; torch's own if there is one lane."""
        if self._parts.num_lanes == 1:
            total: torch.Tensor = get_total_norm(gradients)
            return total
        return total_norm(gradients, world=self._parts.world)

    def _clip(self, parameters: list[torch.nn.Parameter], norm: float, total: torch.Tensor) -> None:
        if self._parts.num_lanes == 1:
            clip_grads_with_norm_(parameters, norm, total)  # torch's own bits
        else:
            gradients = [local(grad) for parameter in parameters if (grad := parameter.grad) is not None]
            clip_in_order(gradients, norm=norm, total=total)
        self.log(grad_norm=total)

    def _step_on_device(self, optimizer: Optimizer, gradients: list[torch.Tensor]) -> None:
        losses = [loss for _, loss, _ in self.terms if isinstance(loss, torch.Tensor)]
        is_sticky = self._parts.nonfinite == "stop"
        flag = self._parts.is_finite.step(optimizer, gradients, losses=losses, is_sticky=is_sticky)
        self._parts.journal.add_value(NONFINITE, flag, step=self.batch.step)

    def _update_scaled(self, optimizer: Optimizer, gradients: list[torch.Tensor], norm: float | None) -> bool:
        scaler = self._parts.scaler
        assert scaler is not None
        if self._is_bad or not (self._on_cpu or all(math.isfinite(loss) for _, loss, _ in self.terms)):
            return self._refuse()  # no scale mends a loss; a gradient that overflows is the scaler's business
        scaler.unscale_(optimizer)
        self._is_scaled = True
        scale(gradients, self._factor)
        parameters = self._parts.gradients.of(optimizer)
        whole = [grad for parameter in parameters if (grad := parameter.grad) is not None]
        if norm is not None:
            self._clip(parameters, norm, self._norm(whole))
        scaler.step(optimizer)
        is_done = not any(flag.item() for flag in scaler._found_inf_per_device(optimizer).values())
        self.log(loss_scale=scaler.get_scale())
        if not is_done:
            self.log(skipped=1.0)
        return is_done

    def settle(self) -> None:
        """End a pass in fp16: what all of its updates met decides once about the next one's scale."""
        if self._is_scaled:
            self._is_scaled = False
            assert self._parts.scaler is not None
            self._parts.scaler.update()

    def _refuse(self) -> bool:
        where = self._find_nonfinite()
        if self._parts.nonfinite == "stop":
            if self._is_bad:
                # All processes know of a loss, and meet here. One that holds other bits is its likely origin.
                self._parts.audit.compare_replicas(self._parts.tracked, step=self.index)
            raise shared(
                NonFiniteError(
                    f"step {step_number(self.index)}: {where}. The weights were not touched. "
                    f"{NONFINITE_ADVICE} {self._parts.look_at(step_number(self.index))}"
                )
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
        """Write values of this step into the record, one number each. Tensors are fetched later, in bulk."""
        if self._is_filler and self._lane is not None:
            return  # of a lane that another process logs
        for name, value in values.items():
            if name == NONFINITE:
                raise UsageError(
                    f"step.log({name}=...): under this name the record stores which steps a device skipped. "
                    f"Give the value another name."
                )
            kept = _one_number(name, value, is_at_hand=self._on_cpu)
            self._parts.journal.add_value(name, kept, step=self.batch.step)


def _one_number(name: str, value: Scalar, *, is_at_hand: bool) -> Scalar:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        if not is_at_hand:  # kept as it is now: the script may change it before it is fetched
            return value.detach().reshape(()).clone()
        # On the CPU there is nothing to wait for, and a number is cheaper to keep.
        value = value.item()
    if not isinstance(value, torch.Tensor):
        with contextlib.suppress(TypeError, ValueError):
            return float(value)
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    raise UsageError(
        f"step.log takes one number for each name, got {type(value).__name__}{shape} for {name!r}. Pass its "
        f"mean()."
    )


def _unusable(loss: object) -> str:
    if not isinstance(loss, torch.Tensor):
        return (
            f"step.backward needs the loss as a tensor, got {type(loss).__name__}. Was .item() called on it?"
        )
    if loss.numel() != 1:
        return f"step.backward needs one number, got a loss of shape {tuple(loss.shape)}. Take its mean()."
    return (
        "this loss does not depend on any parameter (requires_grad is False): it was detached, created again "
        "with torch.tensor(...), or computed under no_grad. Pass the loss as the model's output gave it."
    )
