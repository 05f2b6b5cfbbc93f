"""Evidence for ENV17 scarce-descriptors."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

BUGGY = Evidence(machine=replace(SOUND, max_files=256, max_files_hard=4096))
CLEAN = Evidence(machine=replace(SOUND, max_files=1024, max_files_hard=4096))
