"""What torch calls when it is imported, so that scripts have the device without importing it."""

import sys


def load() -> None:
    """Load the device, unless it is the device that imports torch."""
    if "toy" not in sys.modules:
        import toy  # noqa: F401
