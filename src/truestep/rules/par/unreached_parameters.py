"""A parameter in the optimizer never gets a gradient.

## What it finds
Trainable parameters in an optimizer that have no gradient at any step of the run: a layer that `forward`
never calls, often because another one is called twice, or whose result is detached from the graph. Also
optimizers whose gradients are all zero at every step that was checked: the loss depends on rounded values.

## Why it matters
The layer is missing from the computation, or it takes part with random weights.

## How to fix
Call the layer where it belongs, or remove what breaks the graph (`detach`, `argmax`, `.data`). Remove a layer
that you do not need, or freeze it with `requires_grad_(False)`.
"""

from collections import Counter
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.roster import find_optimizer, names, names_of, read_roster
from truestep.rules.kit.where import assignments, class_in
from truestep.watch import Operation
from truestep.watch.evidence.facts.optimizing import GradientsZero, OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.facts.structure import Optimizer, Parameter, ParametersListed
from truestep.watch.evidence.kinds import Place

RULE = Meta(
    code="PAR06",
    severity="warning",
    needs=(BackwardPass, OptimizerStep, ParametersListed),
    fix="Use the layer in forward and keep its result in the graph; otherwise remove or freeze it.",
    caused_by=("LOOP12", "LOSS05"),
)
_CUTS = ("detach", "argmax", "argmin", "round", "floor", "ceil", "sign", "bernoulli", "multinomial")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find trainable parameters that gradients never reach."""
    yield from _find_zeros(evidence)
    roster = read_roster(evidence)
    if roster is None:
        return
    learning = [item for item in roster.parameters if item.has_grad]
    used = {_owner_of(item) for item in learning}
    chosen = {item.model for item in roster.parameters if not item.groups}
    for optimizer in roster.stepped:
        if optimizer.num_steps < min(2, evidence.first.num_steps) or optimizer.is_frozen:
            continue
        parts: dict[tuple[str | None, str], list[Parameter]] = {}
        for item in roster.of(optimizer):
            # The bias of a layer whose weight has a gradient is in the graph, and has none by design.
            is_bias = item.origin == "torch" or (item.path or "").endswith(".bias")
            is_by_design = is_bias and _owner_of(item) in used
            if not item.num_steps or not _is_unreached(item) or is_by_design:
                continue
            if not _is_switched_off(item, learning):
                parts.setdefault((item.holder, _part_of(item)), []).append(item)
        kept = [
            items
            for items in parts.values()
            # Who leaves others of the model out wants these to learn.
            if items[0].model in chosen or not _is_cut_on_purpose(evidence, items[0])
        ]
        for cut, groups in _by_cut(evidence, kept):
            yield _finding(evidence, optimizer, cut, groups)


def _find_zeros(evidence: Evidence) -> Iterator[Finding]:
    """Find optimizers that only ever got zeros."""
    flat = {"round", "floor", "ceil", "trunc", "sign", "sgn"}
    for moment in evidence.of(GradientsZero):
        facts = moment.facts
        optimizer = find_optimizer(evidence, facts.optimizer)
        cuts = [one for one in evidence.flow.all if one.kind in flat and one.line and one.ins[0].has_grad]
        place = cuts[0] if cuts else next(iter(evidence.of(BackwardPass)), moment)
        yield Finding.at(
            place,
            f"all gradients of {optimizer.class_name if optimizer else 'the optimizer'} are zero",
            count=1,
            severity="error",
            evidence=f"the gradients of {facts.num_parameters} parameters were exactly zero at all "
            f"{facts.num_steps} steps that were checked{names_of(evidence, facts.optimizer)}"
            + (f"; {cuts[0].kind} has no slope" if cuts else ""),
        )


def _by_cut(
    evidence: Evidence, parts: list[list[Parameter]]
) -> list[tuple[Operation | None, list[list[Parameter]]]]:
    """Return parts together that one operation cuts from the graph, and each of the others alone."""
    cuts = [_find_cuts(evidence, items[0]) for items in parts]
    counts = Counter(place for found in cuts for place in {(cut.file, cut.line) for cut in found})
    result: list[tuple[Operation | None, list[list[Parameter]]]] = []
    groups: dict[tuple[str | None, int | None], list[list[Parameter]]] = {}
    for items, found in zip(parts, cuts, strict=True):
        cut = max(found, key=lambda cut: counts[cut.file, cut.line], default=None)
        if cut is None:
            result.append((None, [items]))
        elif (cut.file, cut.line) in groups:
            groups[cut.file, cut.line].append(items)
        else:
            groups[cut.file, cut.line] = [items]
            result.append((cut, groups[cut.file, cut.line]))
    return result


def _owner_of(item: Parameter) -> tuple[int | None, str]:
    return item.model, (item.path or "").rpartition(".")[0]


def _is_unreached(item: Parameter) -> bool:
    if item.has_grad or item.is_frozen or item.is_changed or item.is_loaded:
        return False
    return item.origin == "own" or (item.origin == "torch" and item.num_lost == 0)


def _is_switched_off(item: Parameter, learning: list[Parameter]) -> bool:
    """Whether the same one learns in another model of its class, and others learn in this model."""
    like = (item.holder, item.path)
    others = [one for one in learning if one.model != item.model and (one.holder, one.path) == like]
    return bool(item.holder and others) and any(one.model == item.model for one in learning)


def _finding(
    evidence: Evidence, optimizer: Optimizer, cut: Operation | None, groups: list[list[Parameter]]
) -> Finding:
    first, parts = groups[0][0], [_part_of(items[0]) for items in groups]
    place: Place | Operation = cut or optimizer.made_at
    if cut is None and _is_cut_on_purpose(evidence, first):
        place = _operations_of(evidence, first)[0]
    elif cut is None:
        for source in evidence.sources:
            tree = class_in(source, first.holder)
            made = next(assignments(tree, parts[0]), None) if tree is not source.tree else None
            if made is not None:
                place = source.at(made[0].lineno)
                break
    verb = "is in the optimizer but never gets" if len(parts) == 1 else "are in the optimizer but never get"
    return Finding.at(
        place,
        f"{first.holder or 'the model'}'s {', '.join(parts)} {verb} a gradient",
        step=first.first_step + 1,
        evidence=f"no gradient at any of {optimizer.num_steps} steps"
        + (f", detached by {cut.kind}" if cut is not None else "")
        + f": {names([item for items in groups for item in items])}",
    )


def _part_of(item: Parameter) -> str:
    """Return the attribute of the user's class through which a parameter is held."""
    words = [word for word in (item.path or "").split(".")[:-1] if not word.isdigit()]
    return words[-1] if words else (item.path or "").rpartition(".")[2]


def _operations_of(evidence: Evidence, item: Parameter) -> list[Operation]:
    owner = (item.path or "").rpartition(".")[0]
    if not owner:
        return []
    return [
        one
        for one in evidence.operations
        if one.phase == "forward" and (one.module == owner or owner.endswith(f".{one.module}")) and one.module
    ]


def _find_cuts(evidence: Evidence, item: Parameter) -> list[Operation]:
    """Return the operations that cut what a module computes from the graph."""
    own = {one.index for one in _operations_of(evidence, item)}
    made = set(own)  # with what is computed from it
    cuts = []
    for one in evidence.operations:
        if one.phase == "backward" or one.index in own:
            continue
        if any(given.producer in made and given.has_grad for given in one.ins):
            if one.file is not None and one.kind in _CUTS:
                cuts.append(one)
            else:
                made.add(one.index)
    return cuts


def _is_cut_on_purpose(evidence: Evidence, item: Parameter) -> bool:
    """Whether it is only called where gradients are off: then it is kept as it is, by another way."""
    own = _operations_of(evidence, item)
    if not any(given.has_grad for one in own for given in one.ins):
        return False
    made = {one.index for one in own}
    used = [given for one in evidence.operations for given in one.ins if given.producer in made]
    return bool(used) and not any(given.has_grad for given in used)
