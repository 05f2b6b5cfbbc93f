"""Verifying: whether a run repeats, however it is run again, and if not, the first difference and its cause.

Owns the runs, the comparison and the reasons. Scripts are watched by `watch`; telling is left to the command.
"""

from truestep.verify.inquiry import verify
from truestep.verify.options import VerifyOptions
from truestep.verify.verdict import Difference, RunSummary, Verdict
from truestep.watch import Script

__all__ = ["Difference", "RunSummary", "Script", "Verdict", "VerifyOptions", "verify"]
