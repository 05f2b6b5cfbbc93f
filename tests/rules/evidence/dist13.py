"""Evidence for DIST13 missed-gradients."""

from tests.rules.evidence.ranks import recorded
from truestep.watch.evidence.facts.surroundings import GradientsMissed

BUGGY = recorded([(9, GradientsMissed("Net", ["head.weight"], 4, None))], [])
CLEAN = recorded([], [])
