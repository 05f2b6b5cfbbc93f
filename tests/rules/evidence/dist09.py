"""Evidence for DIST09 differing-start."""

from tests.rules.evidence.ranks import recorded
from truestep.watch.evidence.facts.surroundings import ModelSharded

BUGGY = recorded([(9, ModelSharded("Net", {"weight": "0a"}))], [(9, ModelSharded("Net", {"weight": "0b"}))])
CLEAN = recorded(*[[(9, ModelSharded("Net", {"weight": "0a"}))]] * 2)
