"""What crosses processes: the world they form, the schedule of lanes, the tree of sums."""

from truestep.dist.schedule import Schedule, schedule
from truestep.dist.tree import LaneSum, add_tensors, lanes_of
from truestep.dist.world import World, join

__all__ = ["LaneSum", "Schedule", "World", "add_tensors", "join", "lanes_of", "schedule"]
