"""Evidence for ENV01 broken-torch."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

_SYMBOL = (
    "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12"
)
_LOST = {"torch": None, "is_cuda_available": False, "devices": ()}
BUGGY = Evidence(machine=replace(SOUND, **_LOST, torch_error=_SYMBOL))  # type: ignore[arg-type]
CLEAN = Evidence(machine=SOUND)
