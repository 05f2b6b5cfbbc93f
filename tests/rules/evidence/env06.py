"""Evidence for ENV06 unsupported-card."""

from dataclasses import replace

from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence
from truestep.rules.env._machine import Device

_NEW = (Device(name="NVIDIA GeForce RTX 5090", capability="12.0"),)
_GROWN = (Device(name="NVIDIA GeForce RTX 4090", capability="8.9"),)
_ARCHS = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
BUGGY = Evidence(machine=replace(SOUND, devices=_NEW, archs=_ARCHS, torch="2.9.1+cu126", build_cuda="12.6"))
CLEAN = Evidence(machine=replace(SOUND, devices=_GROWN, archs=_ARCHS, torch="2.9.1+cu126", build_cuda="12.6"))
