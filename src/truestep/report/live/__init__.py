"""The live view: a run followed while it trains, in the terminal.

Reads the run's folder and nothing else: however many look at it, the run does not know.
"""

from truestep.report.live.follow import Follower
from truestep.report.live.screen import watch
from truestep.report.live.state import Live

__all__ = ["Follower", "Live", "watch"]
