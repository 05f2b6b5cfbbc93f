"""Evidence for ENV10 unmet-requirement."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence
from truestep.rules.env._versions import Need

_OLD = Need(owner="torchvision", name="torch", wanted="==2.8.0")
_WIDE = Need(owner="lightning", name="torch", wanted="<4.0,>=2.1.0")
BUGGY = Evidence(machine=replace(SOUND, packages={"torchvision": "0.23.0"}, needs=(_OLD,)))
CLEAN = Evidence(machine=replace(SOUND, packages={"lightning": "2.5.6"}, needs=(_WIDE,)))
