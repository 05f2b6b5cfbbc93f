"""Evidence for ENV13 foreign-numpy."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

_TWO = {"numpy": "2.0.1"}
BUGGY = Evidence(
    machine=replace(SOUND, torch="2.2.2+cu121", packages=_TWO, numpy_error="Numpy is not available")
)
CLEAN = Evidence(machine=replace(SOUND, torch="2.3.0+cu121", packages=_TWO))
