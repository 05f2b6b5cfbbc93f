"""Data in shards: files that hold many samples each, here or far away, read like one list of samples.

Owns where a sample is and how it gets here. Leaves batches, lanes and workers to the loader.
"""

from truestep.data.shards.counting import write_index
from truestep.data.shards.dataset import Shards
from truestep.data.shards.index import Shard
from truestep.data.shards.patience import ShardCache

__all__ = ["Shard", "ShardCache", "Shards", "write_index"]
