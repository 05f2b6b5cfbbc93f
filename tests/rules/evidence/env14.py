"""Evidence for ENV14 crowded-cores."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

BUGGY = Evidence(machine=replace(SOUND, cpu_quota=2.0, threads=16))
CLEAN = Evidence(machine=replace(SOUND, cpu_quota=15.5, threads=16))
