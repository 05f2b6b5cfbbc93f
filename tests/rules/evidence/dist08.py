"""Evidence for DIST08 local-norm."""

from tests.rules.evidence.ranks import recorded
from truestep.watch.evidence.facts.surroundings import ShardScaled

BUGGY = recorded([(9, ShardScaled(0, 0.5))], [(9, ShardScaled(0, 0.25))])
CLEAN = recorded([(9, ShardScaled(0, 0.5))], [(9, ShardScaled(0, 0.5))])
