"""Replaying: go back to one step of a run or of a script, compute it again, and look at everything in it.

Owns where a replay begins, what is looked at, and whether it has the run's bits. Printing is the command's.
"""

from truestep.replay.replay import Replayed, replay_run, replay_script

__all__ = ["Replayed", "replay_run", "replay_script"]
