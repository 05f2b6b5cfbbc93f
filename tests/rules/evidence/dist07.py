"""Evidence for DIST07 crowded-file."""

from tests.rules.evidence.ranks import recorded
from truestep.watch.evidence.facts.structure import FileSaved

BUGGY = recorded(*[[(9, FileSaved("torch", "model.pt", None))]] * 2)
CLEAN = recorded([(9, FileSaved("torch", "model.pt", None))], [(9, FileSaved("torch", "model-1.pt", None))])
