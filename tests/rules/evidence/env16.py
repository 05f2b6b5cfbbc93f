"""Evidence for ENV16 cramped-shared-memory."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence
from truestep.rules.env._machine import GIB, MIB

BUGGY = Evidence(machine=replace(SOUND, shm_bytes=64 * MIB, shm_free_bytes=64 * MIB))
CLEAN = Evidence(machine=replace(SOUND, shm_bytes=2 * GIB, shm_free_bytes=2 * GIB))
