"""Evidence for ENV09 foreign-cudnn."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

_REFUSED = "cuDNN version incompatibility: compiled against (9, 10, 2) but found runtime version (8, 9, 7)."
_PATH = {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}
BUGGY = Evidence(machine=replace(SOUND, cudnn=None, cudnn_error=_REFUSED, variables=_PATH))
CLEAN = Evidence(machine=replace(SOUND, variables=_PATH))
