"""Data: the order of samples, batches cut into lanes, splits and padding."""

from truestep.data.collate import Padded, pad_collate
from truestep.data.feed import Feed
from truestep.data.loader import Loader
from truestep.data.part import split
from truestep.data.permutation import Permutation
from truestep.data.plan import Batch, LaneBatch, Plan, filled_lanes

__all__ = [
    "Batch",
    "Feed",
    "LaneBatch",
    "Loader",
    "Padded",
    "Permutation",
    "Plan",
    "filled_lanes",
    "pad_collate",
    "split",
]
