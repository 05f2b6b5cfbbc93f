"""Layers in a plain list are not registered with the model and never trained.

## What it finds
Modules or parameters that a model keeps in a list, a tuple, a dictionary or a plain object. They get
gradients in training, but no optimizer holds them, because `model.parameters()` does not yield them.

## Why it matters
Only registered parameters are trained, saved in `state_dict()` and moved by `.to(device)`. The model runs
with these layers' random initial weights, and a checkpoint does not contain them. The rest of the model
learns around them, so the loss falls and nothing looks wrong.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.roster import names, read_roster
from truestep.rules.kit.where import find_assignment
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardPass
from truestep.watch.evidence.facts.structure import HidingPlace, Parameter, ParametersListed

RULE = Meta(
    code="PAR01",
    severity="error",
    needs=(BackwardPass, ParametersListed),
    fix="Use nn.ModuleList, nn.ModuleDict, nn.ParameterList or nn.Parameter to register them.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find parameters that models use and do not know."""
    roster = read_roster(evidence)
    found: dict[tuple[str, str], tuple[HidingPlace, list[Parameter]]] = {}
    for item in roster.left_out if roster is not None else ():
        if item.hidden is not None and item.is_training:
            key = (item.hidden.holder, item.hidden.attribute)
            found.setdefault(key, (item.hidden, []))[1].append(item)
    for (holder, file, attribute, class_name), items in found.values():
        place = find_assignment(evidence, attribute, holder=holder, file=file)
        yield Finding.at(
            place or evidence.of(ForwardPass, BackwardPass)[0],
            f"{holder}.{attribute} holds parameters that are not registered: none is trained",
            step=items[0].first_step + 1,
            evidence=f"{len(items)} parameters in {class_name} got gradients, are in no optimizer "
            f"and did not change: {names(items)}",
        )
