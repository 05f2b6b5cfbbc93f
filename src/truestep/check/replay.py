"""Replaying a step to see where its first non-finite value came from.

Owns following a value back through the operations that made it. The script is run again up to that step, as
it is: one that does not repeat may not show it again.
"""

from dataclasses import replace

from truestep.rules.evidence import Evidence
from truestep.watch import Operation, Plan, Process
from truestep.watch.evidence.facts.optimizing import LossLevel

_WORSE = ("infinite", "nan")


def replay_plan(plan: Plan, evidence: Evidence, *, step: int) -> Plan:
    """Return a plan that looks at the values of all operations up to this step.

    It begins at the last loss that was finite: between windows not every step was observed.
    """
    finite = [moment.step for moment in evidence.of(LossLevel) if isinstance(moment.facts.loss, float)]
    first = max((at for at in finite if at < step), default=max(0, step - 1))
    return replace(plan, inspect=False, bits="finite", operations=(first, step), steps=step + 1)


def find_origin(process: Process) -> Operation | None:
    """Return the operation that made the first value that is not finite, of those that reached a gradient.

    Values that come to nothing, such as the infinities of a mask, are passed over: it looks back from the
    first backward pass that has one in it.
    """
    by_index = {operation.index: operation for operation in process.operations}
    for operation in process.operations:
        if operation.phase == "backward" and _worst(operation):
            return _follow(operation, by_index)
    return None


def _follow(operation: Operation, by_index: dict[int, Operation]) -> Operation:
    """Go back to where the value was still sound."""
    seen: set[int] = set()
    while operation.index not in seen:
        seen.add(operation.index)
        wanted = _worst(operation)
        producers = [by_index[item.producer] for item in operation.ins if item.producer in by_index]
        before = [item for item in producers if _is_as_bad(item, wanted) and item.index < operation.index]
        if not before:
            return operation
        operation = before[-1]
    return operation


def _worst(operation: Operation) -> str | None:
    """Return the worst that it gave; None if all is finite."""
    found = {out.worst for out in operation.outs}
    return next((name for name in reversed(_WORSE) if name in found), None)


def _is_as_bad(operation: Operation, wanted: str | None) -> bool:
    found = _worst(operation)
    return found is not None and (wanted != "nan" or found == "nan")
