"""Data in shards: files that hold many samples each, here or far away, read like one list of samples.

Owns where a sample is and how it gets here. Leaves batches, lanes and workers to the loader.
"""

from truestep.run.data.shards.counting import write_index
from truestep.run.data.shards.dataset import Shards
from truestep.run.data.shards.index import Shard
from truestep.run.data.shards.patience import ShardCache

__all__ = ["Shard", "ShardCache", "Shards", "write_index"]
