"""What crosses processes: the tree of sums."""

from truestep.dist.tree import LaneSum, add_tensors, lanes_of

__all__ = ["LaneSum", "add_tensors", "lanes_of"]
