"""What a script did not do while it was observed, in words.

Owns the words for kinds of moments that many scripts have and others lack. The rules that need them did not
apply; which these are is in `evaluate`.
"""

from collections.abc import Iterable

from truestep.rules.evidence import Evidence
from truestep.rules.rule import Rule
from truestep.watch import Facts
from truestep.watch.evidence.facts.loading import EpochBegan, LoaderUsed
from truestep.watch.evidence.facts.optimizing import (
    ClippingCalled,
    GradientsClipped,
    GradientsUnscaled,
    SchedulerMade,
    SchedulerStep,
)
from truestep.watch.evidence.facts.passes import ParallelMade
from truestep.watch.evidence.facts.structure import CheckpointLoaded, FileLoaded, ModelRefilled, StateLoaded
from truestep.watch.evidence.facts.surroundings import GroupJoined

_USES: dict[str, tuple[type[Facts], ...]] = {
    "a data loader": (LoaderUsed, EpochBegan),
    "a scheduler": (SchedulerMade, SchedulerStep),
    "gradient clipping": (ClippingCalled, GradientsClipped),
    "gradient scaling": (GradientsUnscaled,),
    "a loaded checkpoint": (CheckpointLoaded, FileLoaded, ModelRefilled, StateLoaded),
    "several processes": (ParallelMade, GroupJoined),
}
"""Those that most scripts have come first. Any of the kinds shows that a script has it."""


def not_seen(rules: Iterable[Rule], evidence: Evidence) -> list[str]:
    """Return what these rules need and no process of the script did."""
    needed = {kind for rule in rules for kind in rule.meta.needs}
    return [
        words
        for words, kinds in _USES.items()
        if not needed.isdisjoint(kinds)
        and not any(process.has(kind) for process in evidence.processes for kind in kinds)
    ]
