"""Evidence for ENV18 retired-nvml-binding."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

BUGGY = Evidence(machine=replace(SOUND, packages={"pynvml": "11.5.3"}))
CLEAN = Evidence(machine=replace(SOUND, packages={"nvidia-ml-py": "13.580.82"}))
