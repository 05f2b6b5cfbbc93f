"""What crosses processes: the world they form, the schedule of lanes, the tree of sums."""

from truestep.run.dist.schedule import Schedule, schedule
from truestep.run.dist.tree import LaneSum, add_tensors, lanes_of
from truestep.run.dist.world import World, join

__all__ = ["LaneSum", "Schedule", "World", "add_tensors", "join", "lanes_of", "schedule"]
