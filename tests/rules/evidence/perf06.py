"""Evidence for PERF06 pageable-copies."""

from tests.rules.evidence.loops import recorded_loop
from truestep.watch.evidence.facts.surroundings import CopiedToDevice

BUGGY = recorded_loop(CopiedToDevice("to", is_pinned=False))
CLEAN = recorded_loop(CopiedToDevice("to", is_pinned=True))
