"""Evidence for DIST04 same-batches."""

from tests.rules.evidence.ranks import recorded, trained_loader

BUGGY = recorded(*[trained_loader([[1, 2], [3, 4], [5, 6]])] * 2)
CLEAN = recorded(trained_loader([[1, 2], [3, 4]]), trained_loader([[5, 6], [7, 8]]))
