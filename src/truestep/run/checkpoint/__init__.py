"""Checkpoint: snapshots of training on disk, atomic, verified when read, never unpickled.

Owns the snapshot format and its folder. Leaves what goes into a snapshot, and when, to `train`.
"""

from truestep.run.checkpoint.background import BackgroundSaver
from truestep.run.checkpoint.parts import targets_of
from truestep.run.checkpoint.saving_group import Crew
from truestep.run.checkpoint.snapshot import Snapshot
from truestep.run.checkpoint.state import pack
from truestep.run.checkpoint.store import Damage, Store

__all__ = ["BackgroundSaver", "Crew", "Damage", "Snapshot", "Store", "pack", "targets_of"]
