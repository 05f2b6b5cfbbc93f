"""Checking a script: gather evidence, evaluate all rules, look again where it helps, suppress, fix.

Owns the way from a script to its findings. What is wrong is for `rules` to say.
"""

from truestep.check.evaluate import Evaluation, RuleFinding, evaluate_rules
from truestep.check.examine import Listener, Result, examine
from truestep.check.fixing import Fixed, Proposed, apply_fixes, propose, proposed
from truestep.check.formats import as_annotations, as_sarif
from truestep.check.gather import CheckOptions, check_plan, gather
from truestep.check.settings import Settings, read_settings

__all__ = [
    "CheckOptions",
    "Evaluation",
    "Fixed",
    "Listener",
    "Proposed",
    "Result",
    "RuleFinding",
    "Settings",
    "apply_fixes",
    "as_annotations",
    "as_sarif",
    "check_plan",
    "evaluate_rules",
    "examine",
    "gather",
    "propose",
    "proposed",
    "read_settings",
]
