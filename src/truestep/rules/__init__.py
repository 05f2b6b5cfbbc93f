"""Rules: what is wrong in a training script, found in the evidence that watching has kept.

Owns the catalogue: a folder for each family, a file for each rule. Starts nothing and prints nothing.
"""

from truestep.rules.evidence import Evidence, Source
from truestep.rules.kit.edits import Edit, diff
from truestep.rules.rule import Finding, Meta, Rule, Severity, find_rules

__all__ = [
    "Edit",
    "Evidence",
    "Finding",
    "Meta",
    "Rule",
    "Severity",
    "Source",
    "diff",
    "find_rules",
]
