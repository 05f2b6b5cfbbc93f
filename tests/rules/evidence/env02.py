"""Evidence for ENV02 missing-driver."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

_NO_DRIVER = {"is_cuda_available": False, "devices": (), "driver": None, "driver_cuda": None, "gpus": ()}
BUGGY = Evidence(machine=replace(SOUND, **_NO_DRIVER))  # type: ignore[arg-type]
CLEAN = Evidence(machine=replace(SOUND, **_NO_DRIVER, num_pci_gpus=0))  # type: ignore[arg-type]
