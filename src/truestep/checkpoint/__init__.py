"""Checkpoint: snapshots of training on disk, atomic, verified when read, never unpickled.

Owns the snapshot format and its folder. Leaves what goes into a snapshot, and when, to `train`.
"""

from truestep.checkpoint.background import BackgroundSaver
from truestep.checkpoint.crew import Crew
from truestep.checkpoint.parts import targets_of
from truestep.checkpoint.snapshot import Snapshot
from truestep.checkpoint.state import pack
from truestep.checkpoint.store import Damage, Store

__all__ = ["BackgroundSaver", "Crew", "Damage", "Snapshot", "Store", "pack", "targets_of"]
