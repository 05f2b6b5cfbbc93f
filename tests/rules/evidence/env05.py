"""Evidence for ENV05 cpu-build."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

_PLAIN = {"torch": "2.9.1+cpu", "build_cuda": None, "archs": (), "is_cuda_available": False, "devices": ()}
_NO_CARD = {"gpus": (), "num_pci_gpus": 0, "driver": None, "driver_cuda": None}
BUGGY = Evidence(machine=replace(SOUND, **_PLAIN))  # type: ignore[arg-type]
CLEAN = Evidence(machine=replace(SOUND, **_PLAIN, **_NO_CARD))  # type: ignore[arg-type]
