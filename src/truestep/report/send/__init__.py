"""Sending a finished run to the servers of other tools, one function for each.

Owns nothing: each tool has its module, which alone imports the tool's package.
"""

from truestep.report.send.mlflow import to_mlflow
from truestep.report.send.trackio import to_trackio
from truestep.report.send.wandb import to_wandb

__all__ = ["to_mlflow", "to_trackio", "to_wandb"]
