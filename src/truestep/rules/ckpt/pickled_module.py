"""A whole module is pickled, or a file is loaded in a way that can run code.

## What it finds
`torch.save(model)` instead of `torch.save(model.state_dict())`, and `torch.load(..., weights_only=False)` on
a file that does not need it or that contains a whole module. A remark, unless the run loads a file that it
did not save itself.

## Why it matters
A pickled module stores the import path of its class, not the class. After you rename or move code, the file
cannot be loaded. Loading it runs any code in the file, so a file from someone else can do anything on your
machine.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment
from truestep.watch.evidence.facts.structure import CheckpointLoaded, FileLoaded, FileSaved, StateSaved

RULE = Meta(
    code="CKPT03",
    severity="warning",
    is_observed=lambda evidence: evidence.has(FileSaved) or evidence.has(FileLoaded),
    is_lasting=True,
    fix="Save model.state_dict(), and load it with weights_only=True into a model built in code.",
    is_quiet=True,
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find files that depend on code, or run it."""
    for saved in evidence.of(StateSaved):
        if saved.facts.modules and saved.facts.is_direct:
            yield Finding.at(
                saved,
                "a whole module is pickled: the file stops loading when its class moves",
                evidence=f"the saved object contains {', '.join(saved.facts.modules)}",
                severity="info",
            )
    for moment in evidence.of(CheckpointLoaded):
        facts = moment.facts
        if facts.is_weights_only is not False or not facts.is_direct:
            continue
        if facts.modules:
            found = f"contains {', '.join(facts.modules)} as a pickled module"
        elif not facts.other_classes:
            found = "contains only tensors and plain values, which weights_only=True can load"
        else:
            continue
        yield Finding.at(
            moment,
            "weights_only=False lets the file run code",
            evidence=f"the file {found}",
            severity="info" if _is_own(evidence, moment) else None,
        )


def _is_own(evidence: Evidence, loaded: Moment[CheckpointLoaded]) -> bool:
    """Whether this run has saved the file itself, or it has no path."""
    place = (loaded.file, loaded.line)
    paths = {item.facts.path for item in evidence.of(FileLoaded) if (item.file, item.line) == place}
    return paths <= {None, *(item.facts.path for item in evidence.of(FileSaved))}
