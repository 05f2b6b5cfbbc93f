"""Evidence for ENV15 idle-cores."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

BUGGY = Evidence(machine=replace(SOUND, threads=1, variables={"OMP_NUM_THREADS": "1"}))
CLEAN = Evidence(machine=replace(SOUND, threads=8, variables={"OMP_NUM_THREADS": "8"}))
