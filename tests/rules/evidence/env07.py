"""Evidence for ENV07 hidden-devices."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence
from truestep.rules.env.hidden_devices import _NAME

BUGGY = Evidence(machine=replace(SOUND, variables={_NAME: "2"}, is_cuda_available=False, devices=()))
CLEAN = Evidence(machine=replace(SOUND, variables={_NAME: "0"}))
