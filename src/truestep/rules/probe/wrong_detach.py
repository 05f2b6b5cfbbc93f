"""A generator or critic is detached from the loss that should train it.

## What it finds
Optimizer steps without any gradient, although the optimizer's model was called and another model's loss was
computed from the result: `detach()` or `no_grad` is on the wrong side. Also a critic whose own estimate is
detached while gradients flow through the target, which is computed from its next estimate.

## Why it matters
`detach()` belongs where one of two models must not learn. On the wrong side, the model that should learn gets
no gradient: a generator keeps its initial weights, or a critic moves its targets towards its estimates. The
losses still change, because the other model learns.

## How to fix
In the generator's (or actor's) loss, do not detach the fake samples (or actions). Detach them only in the
critic's loss. For a critic, detach the target and not the estimate.
"""

from bisect import bisect_left
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import SQUARED
from truestep.rules.kit.grouping import grouped
from truestep.rules.kit.roster import names_of
from truestep.watch import Moment, Operation
from truestep.watch.evidence.facts.optimizing import GradientsPresent, OptimizerOwns, OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass, PassesUsed, PassExamined
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="PROBE03",
    severity="error",
    needs=(GradientsPresent, PassExamined),
    caused_by=("LOOP12",),
    fix="Remove this detach() where the model should learn, and detach the other side.",
)
_MIN_STEPS = 2
_COMPARING = SQUARED | {"sub"}
_PICKING = frozenset({"gather", "index", "mean", "max", "amax"})
_MAX_DEPTH = 12


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find optimizers that never get a gradient, and targets that learn in the place of estimates."""
    yield from _idle(evidence)
    yield from _swapped(evidence)


def _idle(evidence: Evidence) -> Iterator[Finding]:
    with_closure = _with_closure(evidence)
    seen = grouped(evidence.of(GradientsPresent), "facts.optimizer")
    for optimizer, moments in seen.items():
        if (
            len(moments) < _MIN_STEPS
            or any(moment.facts.has_gradient for moment in moments)
            or optimizer in with_closure
        ):
            continue
        models = {m.facts.model for m in evidence.of(OptimizerOwns) if m.facts.optimizer == optimizer}
        called = [moment for moment in evidence.of(PassExamined) if moment.facts.model in models]
        pass_ = _cut_pass(evidence, called, before=moments[0])
        has_loss = any(moment.at_s < moments[0].at_s for moment in evidence.of(BackwardPass))
        if pass_ is not None and has_loss:  # gradients may also be made by hand, without any
            yield _idle_finding(evidence, moments, pass_)


def _with_closure(evidence: Evidence) -> set[int]:
    """Return optimizers whose gradients are made inside of their steps; some closures do nothing."""
    times = [moment.at_s for moment in evidence.of(BackwardPass)]
    found = set()
    for step in evidence.of(OptimizerStep):
        place = bisect_left(times, step.at_s) if step.facts.has_closure else len(times)
        if place < len(times) and times[place] <= step.at_s + step.took_s:
            found.add(step.facts.optimizer)
    return found


def _cut_pass(
    evidence: Evidence, called: list[Moment[PassExamined]], *, before: Moment[GradientsPresent]
) -> Moment[PassExamined] | None:
    """Return the last pass of the models before a step that no backward pass reached."""
    used = {number for moment in evidence.of(PassesUsed) for number in moment.facts.numbers}
    last = [moment for moment in called if moment.at_s < before.at_s]
    cut = [moment for moment in last if moment.facts.number not in used]
    return cut[-1] if cut and last and cut[-1] is last[-1] else None


def _idle_finding(
    evidence: Evidence, moments: list[Moment[GradientsPresent]], cut: Moment[PassExamined]
) -> Finding:
    passes = [moment for moment in evidence.of(BackwardPass) if moment.at_s < moments[0].at_s]
    cut_at = (_last_detach(evidence, passes[-1]) or passes[-1]) if cut.facts.is_grad_enabled else cut
    return Finding.at(
        cut_at,
        "the model of this optimizer is detached from the loss: its steps have no gradient",
        evidence=f"all {len(moments)} checked steps at line {moments[0].line} had "
        f"no gradient; the model was called at line {cut.line} and no backward pass reached it"
        f"{names_of(evidence, moments[0].facts.optimizer)}",
        step=moments[0].step + 1,
    )


def _last_detach(evidence: Evidence, backward: Moment[BackwardPass]) -> Operation | None:
    """Return the last `detach` before a backward pass and after whatever training came before it."""
    found = None
    for operation in evidence.operations:
        if operation.phase == "backward" and operation.line == backward.line:
            if found is not None:
                return found
        elif operation.phase in ("backward", "optimizer"):
            found = None
        elif _is_detach(evidence, operation):
            found = operation
    return found


def _is_detach(evidence: Evidence, operation: Operation) -> bool:
    """Whether the user detaches: torch does so too, for what it keeps."""
    if operation.kind != "detach" or not operation.ins or not operation.ins[0].has_grad:
        return False
    source = evidence.source(operation.file)
    return source is not None and "detach" in source.line(operation.line)


def _swapped(evidence: Evidence) -> Iterator[Finding]:
    operations = {operation.index: operation for operation in evidence.operations}
    trained = _trained(operations)
    for operation in operations.values():
        if operation.kind not in _COMPARING or len(operation.ins) != 2 or operation.phase == "backward":
            continue
        if operation.index not in trained:
            continue
        loose = [item for item in operation.ins if not item.has_grad]
        tied = [item for item in operation.ins if item.has_grad]
        if len(loose) != 1 or len(tied) != 1:
            continue
        estimate = _model_output(operations, loose[0], arithmetic=False)
        target = _model_output(operations, tied[0], arithmetic=True)
        if (
            estimate is None
            or target is None
            or _weights(operations, estimate) != _weights(operations, target)
        ):
            continue
        detach = next(
            (
                item
                for item in operations.values()
                if _is_detach(evidence, item) and item.ins[0].producer == loose[0].producer
            ),
            None,
        )
        if detach is not None and _weights(operations, estimate):
            yield Finding.at(
                detach,
                "the estimate is detached instead of the target: the critic learns the wrong way round",
                evidence=f"at line {operation.line} the estimate has no gradient, and the target, "
                "computed from the same model's next estimate, has one",
            )


def _trained(operations: dict[int, Operation]) -> set[int]:
    """Return operations that a backward pass went through, or that those took gradients from."""
    reached = {
        (item.forward_name, item.forward_line) for item in operations.values() if item.phase == "backward"
    }
    found = set()
    for item in operations.values():
        if item.phase != "backward" and (item.name, item.line) in reached:
            found.add(item.index)  # a difference hands its gradient on as it is: nothing is computed for it
            found |= {given.producer for given in item.ins if given.has_grad and given.producer is not None}
    return found


def _model_output(operations: dict[int, Operation], given: In, *, arithmetic: bool) -> Operation | None:
    """Return the operation of a model that a value comes from: as it is, or scaled and shifted."""
    scaled = shifted = False
    operation = operations.get(-1 if given.producer is None else given.producer)
    for _ in range(_MAX_DEPTH):
        if operation is None:
            return None
        if operation.phase == "forward":
            return operation if not arithmetic or (scaled and shifted) else None
        if operation.kind in ("mul", "add"):
            if not arithmetic or sum(item.has_grad for item in operation.ins) != 1:
                return None
            scaled |= operation.kind == "mul"
            shifted |= operation.kind == "add"
        elif operation.kind not in _PICKING:
            return None
        follow = next((item for item in operation.ins if item.has_grad), operation.ins[0])
        operation = operations.get(-1 if follow.producer is None else follow.producer)
    return None


def _weights(operations: dict[int, Operation], operation: Operation) -> frozenset[int]:
    """Return what wrote the weights that an operation takes: the same ones, the same model."""
    found = set()
    for item in operation.ins:
        writer = operations.get(-1 if item.producer is None else item.producer)
        if writer is not None and writer.phase in ("setup", "optimizer", "other") and item.has_grad:
            found.add(writer.index)
    return frozenset(found)
