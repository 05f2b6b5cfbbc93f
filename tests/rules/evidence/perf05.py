"""Evidence for PERF05 waiting-host."""

from tests.rules.evidence.loops import recorded_loop
from truestep.watch.evidence.facts.surroundings import HostWaited

BUGGY = recorded_loop(HostWaited("item"))
CLEAN = recorded_loop(HostWaited("item"), every=16)
