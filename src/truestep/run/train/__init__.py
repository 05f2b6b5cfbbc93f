"""Training: the run, its steps, and what keeps them."""

from truestep.run.train.keeper import Snapshots
from truestep.run.train.run import Run
from truestep.run.train.step import Step

__all__ = ["Run", "Snapshots", "Step"]
