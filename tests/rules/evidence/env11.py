"""Evidence for ENV11 foreign-extensions."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

BUGGY = Evidence(machine=replace(SOUND, packages={"torchvision": "0.24.1+cpu"}))
CLEAN = Evidence(machine=replace(SOUND, packages={"torchvision": "0.24.1", "torchao": "0.14.1"}))
