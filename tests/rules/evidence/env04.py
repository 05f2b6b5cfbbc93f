"""Evidence for ENV04 failed-start."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence
from truestep.rules.env._machine import Device

_UNKNOWN = "CUDA unknown error - this may be due to an incorrectly set up environment"
_BUSY = Device(name="NVIDIA A100-SXM4-40GB", capability="8.0")
BUGGY = Evidence(machine=replace(SOUND, is_cuda_available=False, devices=(), cuda_error=_UNKNOWN))
CLEAN = Evidence(machine=replace(SOUND, devices=(_BUSY, _BUSY), gpus=(_BUSY.name, _BUSY.name)))
