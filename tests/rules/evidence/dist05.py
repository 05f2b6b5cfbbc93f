"""Evidence for DIST05 uneven-steps."""

from tests.rules.evidence.ranks import recorded, trained_loader

BUGGY = recorded(
    trained_loader([[1, 2], [3, 4], [5, 6]]), trained_loader([[7, 8], [9, 10]]), num_steps=(3, 2)
)
CLEAN = recorded(trained_loader([[1, 2], [3, 4]]), trained_loader([[7, 8], [9, 10]]), num_steps=(2, 2))
