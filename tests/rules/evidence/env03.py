"""Evidence for ENV03 outdated-driver."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

_OLD = {"is_cuda_available": False, "devices": (), "driver": "470.256.02", "driver_cuda": "11.4"}
_WITHIN = {"driver": "550.54.14", "driver_cuda": "12.4"}
BUGGY = Evidence(machine=replace(SOUND, **_OLD))  # type: ignore[arg-type]
CLEAN = Evidence(machine=replace(SOUND, **_WITHIN))  # type: ignore[arg-type]
