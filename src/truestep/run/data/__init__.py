"""Data: the order of samples, batches cut into lanes, splits, padding and packing."""

from truestep.run.data.collate import Padded, pad_collate
from truestep.run.data.feed import Feed
from truestep.run.data.loader import Loader
from truestep.run.data.packed import Packed
from truestep.run.data.part import split
from truestep.run.data.permutation import Permutation
from truestep.run.data.plan import Batch, DeliveryPlan, LaneBatch, filled_lanes
from truestep.run.data.seeded import SeededOrder, SeededSamples
from truestep.run.data.shards import ShardCache, Shards

__all__ = [
    "Batch",
    "DeliveryPlan",
    "Feed",
    "LaneBatch",
    "Loader",
    "Packed",
    "Padded",
    "Permutation",
    "SeededOrder",
    "SeededSamples",
    "ShardCache",
    "Shards",
    "filled_lanes",
    "pad_collate",
    "split",
]
