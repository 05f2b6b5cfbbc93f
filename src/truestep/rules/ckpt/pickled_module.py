"""A whole module is pickled.

## What it finds
`torch.save(model)` instead of `torch.save(model.state_dict())`.

## Why it matters
A pickled module stores the import path of its class, not the class. After you rename or move code, the file
cannot be loaded. Loading it runs any code in the file, so a file from someone else can do anything on your
machine.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.structure import FileSaved, StateSaved

RULE = Meta(
    code="CKPT03",
    severity="info",
    needs=(FileSaved,),
    is_lasting=True,
    fix="Save model.state_dict(), and load it with weights_only=True into a model built in code.",
    is_quiet=True,
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find files that depend on code."""
    for saved in evidence.of(StateSaved):
        if saved.facts.modules and saved.facts.is_direct:
            yield Finding.at(
                saved,
                "a whole module is pickled: the file stops loading when its class moves",
                evidence=f"the saved object contains {', '.join(saved.facts.modules)}",
            )
