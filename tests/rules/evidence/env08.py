"""Evidence for ENV08 differing-toolkit."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

BUGGY = Evidence(machine=replace(SOUND, toolkit="11.5"))
CLEAN = Evidence(machine=replace(SOUND, toolkit="12.4"))
