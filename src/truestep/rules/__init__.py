"""Rules: what is wrong in a training script, told from the evidence that watching has kept.

Owns the catalogue: a folder for each family, a file for each rule. Starts nothing and prints nothing.
"""

from truestep.rules.baseline import write_baseline
from truestep.rules.edits import Edit, diff, propose
from truestep.rules.evidence import Evidence, Source
from truestep.rules.examine import Result, examine
from truestep.rules.fixing import Fixed, apply_fixes
from truestep.rules.gather import check_plan, gather
from truestep.rules.judge import Judgement, Told, judge
from truestep.rules.rule import Finding, Meta, Rule, Severity, find_rules
from truestep.rules.sarif import as_sarif
from truestep.rules.settings import Settings, read_settings
from truestep.watch import Script

__all__ = [
    "Edit",
    "Evidence",
    "Finding",
    "Fixed",
    "Judgement",
    "Meta",
    "Result",
    "Rule",
    "Script",
    "Settings",
    "Severity",
    "Source",
    "Told",
    "apply_fixes",
    "as_sarif",
    "check_plan",
    "diff",
    "examine",
    "find_rules",
    "gather",
    "judge",
    "propose",
    "read_settings",
    "write_baseline",
]
