"""Adam's weight decay is an L2 penalty, not decoupled decay.

## What it finds
Adam, NAdam, RAdam or Adamax with `weight_decay` above zero and not decoupled: the decay is added to the
gradient and then divided by the gradient's scale.

## Why it matters
Weights with large gradients decay less than the number suggests, weights with small ones more. The value has
little to do with the one in recipes for AdamW, and the same number gives different results.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.optimizers import coupled_decays
from truestep.rules.kit.roster import at, read_roster
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.structure import ParametersListed

RULE = Meta(
    code="PAR09",
    severity="info",
    needs=(OptimizerStep, ParametersListed),
    fix="Use torch.optim.AdamW, whose decay does not depend on the gradient's scale.",
    is_quiet=True,
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find decay that is scaled like a gradient."""
    roster = read_roster(evidence)
    for optimizer in roster.stepped if roster is not None else ():
        decays = coupled_decays(optimizer)
        if decays:
            yield Finding(
                message=f"{optimizer.class_name} adds weight decay to the gradient and rescales it: "
                "it is not the decay of AdamW",
                **at(optimizer.made_at),
                step=optimizer.first_step + 1,
                evidence=f"weight_decay={max(decays):g} in {sum(map(bool, decays))} of {len(decays)} groups",
            )
