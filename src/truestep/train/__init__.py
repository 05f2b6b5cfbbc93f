"""Training: the run, its steps, and what keeps them."""

from truestep.train.keeper import Snapshots
from truestep.train.run import Run
from truestep.train.step import Step

__all__ = ["Run", "Snapshots", "Step"]
