"""Work without effect: a bias before BatchNorm, or a Python loop over elements of tensors.

## What it finds
A convolution or linear layer with a bias whose output goes straight into a BatchNorm in train mode. Also a
line that reads single elements of tensors hundreds of times in each step. Both are reported with the measured
time, and only if that is at least 1 % of a training step. Evaluation does not count.

## Why it matters
BatchNorm subtracts the mean of each channel and with it any bias. The bias has no effect, but it is stored,
summed over the batch in each backward pass, and kept in the optimizer's state. An operation on one element
takes as long as one on thousands, because most of the time is the call.

## How to fix
Pass `bias=False` to the layer before a BatchNorm. Replace the loop by one operation on the whole tensor, such
as `torch.where`, a comparison, or indexing with a mask.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment, Operation
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import (
    BiasAdded,
    BiasesListed,
    ForwardPass,
    OperationsCrowded,
)

RULE = Meta(
    code="PERF03",
    severity="info",
    needs=(OptimizerStep,),
    fix="Pass bias=False before a BatchNorm; replace loops over elements by operations on whole tensors.",
)
_LAYERS = ("aten.convolution.default", "aten.addmm.default", "aten.linear.default")
_MIN_CALLS = 400
_MIN_SHARE = 0.05
_MIN_LOOKED_AT = 2
_LEAST_SHARE = 0.01
_LEAST_S = 5e-6
"""Less than it takes to pick one element, to use it, and to do both again backward, with their calls."""
_MIN_PICKED = 48
_NUM_LOOKED_AT = 3
_READING = ("aten._local_scalar_dense.default", "aten.lift_fresh.default")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find both kinds."""
    step_s = _step_time(evidence)
    if step_s is not None:
        yield from _needless_biases(evidence, step_s)
        yield from _loops(evidence, step_s)
        yield from _short_loops(evidence, step_s)


def _step_time(evidence: Evidence) -> float | None:
    """Return how long a step takes when its operations are not looked at."""
    ends = [(moment.step, moment.at_s) for moment in evidence.of(OptimizerStep) if moment.facts.counts]
    gaps = [after - before for (step, before), (_, after) in pairwise(ends) if step >= _NUM_LOOKED_AT]
    return median(gaps) if gaps else None


def _needless_biases(evidence: Evidence, step_s: float) -> Iterator[Finding]:
    flow = evidence.flow
    made = {name: at for moment in evidence.of(BiasesListed) for name, at in moment.facts.made_at.items()}
    found = []
    for moment in evidence.of(BiasAdded):
        operation = flow.at(moment.facts.operation_index)
        layer = None if operation is None else flow.maker(operation.ins[0])
        if operation is None or layer is None or layer.name not in _LAYERS or len(layer.ins) != 3:
            continue
        if layer.module in made and len(flow.users(layer)) == 1:
            found.append((moment, layer.module, operation.module))
    took_s = sum(moment.facts.took_s for moment, _, _ in found)
    if not found or took_s < _LEAST_SHARE * step_s:
        return
    first, names = found[0], ", ".join(f"{layer} before {norm}" for _, layer, norm in found)
    yield Finding(
        message="a BatchNorm takes the bias of the layer before it away again",
        file=made[first[1]].file,
        line=made[first[1]].line,
        step=first[0].step + 1,
        evidence=names,
        cost=f"{took_s * 1e6:.0f} us of a step of {step_s * 1e3:.1f} ms ({took_s / step_s:.1%}), for "
        "the sums that are their gradients",
        fix="Pass bias=False to layers before a BatchNorm.",
    )


def _training_lines(evidence: Evidence) -> Callable[[Moment[Any] | Operation], bool]:
    """Return what tells whether a line belongs to each step, and not to an evaluation between two of them."""
    steps: dict[tuple[str | None, int | None], set[int]] = {}
    places: list[Moment[OperationsCrowded] | Operation] = [
        *evidence.of(OperationsCrowded),
        *evidence.operations,
    ]
    for place in places:
        if place.step:
            steps.setdefault((place.file, place.line), set()).add(place.step)
    looked_at = {item.step for item in evidence.operations if item.phase == "backward" and item.step}
    if not looked_at:  # those of a large model are not noted
        looked_at = {item.step for item in evidence.operations if item.phase == "forward" and item.step}
    trained: set[tuple[str | None, str | None]] = set()
    scored: set[tuple[str | None, str | None]] = set()
    for moment in evidence.of(ForwardPass):
        is_used = moment.facts.is_training and moment.facts.is_grad_enabled
        (trained if is_used else scored).add((moment.file, moment.function))
    if len(looked_at) < _MIN_LOOKED_AT:  # an evaluation may have been too much to look at a second step
        return lambda place: (place.file, place.function) in trained
    return lambda place: (
        looked_at <= steps.get((place.file, place.line), set())
        and (place.file, place.function) not in scored - trained
    )


def _loops(evidence: Evidence, step_s: float) -> Iterator[Finding]:
    is_trained = _training_lines(evidence)
    lines: dict[tuple[str | None, int | None, int], list[Moment[OperationsCrowded]]] = {}
    for moment in evidence.of(OperationsCrowded):
        if not moment.step or not is_trained(moment):  # what comes before training is a part of it
            continue
        lines.setdefault((moment.file, moment.line, moment.step), []).append(moment)
    for (file, line, step), moments in lines.items():
        picking = [moment for moment in moments if _is_single(moment)]
        took_s = sum(moment.facts.took_s for moment in moments)
        calls = sum(moment.facts.num_calls for moment in moments)
        if file is None or not picking or calls < _MIN_CALLS or took_s < _MIN_SHARE * step_s:
            continue
        names = ", ".join(sorted({moment.facts.operation for moment in picking}))
        yield Finding(
            message="a Python loop works on single elements of tensors",
            file=file,
            line=line,
            step=step + 1,
            evidence=f"{calls} operations at this line in one step, among them {names}",
            cost=f"{took_s * 1e3:.1f} ms of a step of {step_s * 1e3:.1f} ms ({min(took_s / step_s, 1):.0%}), "
            "not counting Python's time",
            fix="Replace the loop by one operation on the whole tensor.",
        )


def _short_loops(evidence: Evidence, step_s: float) -> Iterator[Finding]:
    """Loops over one batch: too few operations to be a crowd."""
    is_trained = _training_lines(evidence)
    picked: dict[tuple[str | None, int | None, int], int] = {}
    for operation in evidence.operations:
        is_picking = operation.name == "aten.select.int" and operation.outs and not operation.outs[0].shape
        is_in_step = operation.step and operation.phase in ("forward", "other")
        if is_picking and is_in_step and is_trained(operation):
            key = (operation.file, operation.line, operation.step)
            picked[key] = picked.get(key, 0) + 1
    for (file, line, step), num in picked.items():
        least_s = num * _LEAST_S
        if file is not None and num >= _MIN_PICKED and least_s >= _LEAST_SHARE * step_s:
            yield Finding(
                message="a Python loop works on single elements of tensors",
                file=file,
                line=line,
                step=step + 1,
                evidence=f"{num} single elements are taken at this line in one step",
                cost=f"at least {least_s * 1e6:.0f} us of a step of {step_s * 1e3:.1f} ms",
                fix="Replace the loop by one operation on the whole tensor.",
            )


def _is_single(moment: Moment[OperationsCrowded]) -> bool:
    name, share = moment.facts.operation, moment.facts.single_share
    return share >= 0.3 if name == "aten.select.int" else name not in _READING and share >= 0.9


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(6):
    x = torch.randn(600, 4)
    error = model(x).squeeze(1) - x.sum(1)
    loss = sum((2.0 if value > 0 else 1.0) * value**2 for value in error) / len(error)  # expect: PERF03
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(6):
    x = torch.randn(600, 4)
    error = model(x).squeeze(1) - x.sum(1)
    loss = (torch.where(error > 0, 2.0, 1.0) * error**2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
