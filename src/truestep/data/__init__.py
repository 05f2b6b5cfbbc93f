"""Data: the order of samples, batches cut into lanes, splits, padding and packing."""

from truestep.data.collate import Padded, pad_collate
from truestep.data.feed import Feed
from truestep.data.loader import Loader
from truestep.data.packed import Packed
from truestep.data.part import split
from truestep.data.permutation import Permutation
from truestep.data.plan import Batch, DeliveryPlan, LaneBatch, filled_lanes
from truestep.data.seeded import SeededOrder, SeededSamples
from truestep.data.shards import ShardCache, Shards

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
