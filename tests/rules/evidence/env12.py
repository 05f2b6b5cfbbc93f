"""Evidence for ENV12 foreign-bitsandbytes."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

_LIBRARIES = ("libbitsandbytes_cpu.so", "libbitsandbytes_cuda118.so", "libbitsandbytes_cuda126.so")
_MORE = (*_LIBRARIES, "libbitsandbytes_cuda128.so")
BUGGY = Evidence(machine=replace(SOUND, packages={"bitsandbytes": "0.45.0"}, quantizers=_LIBRARIES))
CLEAN = Evidence(machine=replace(SOUND, packages={"bitsandbytes": "0.48.1"}, quantizers=_MORE))
