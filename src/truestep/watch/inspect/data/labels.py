"""How the labels of a batch lie.

Owns the few numbers that are kept of them.
"""

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from truestep.watch.evidence.facts.loading import Labels

_MAX_KINDS = 64


def outline_labels(values: npt.NDArray[Any]) -> Labels | None:
    """Return how labels lie; None if they are fractions, or of too many kinds."""
    if values.dtype.kind == "f":
        whole = values.astype(np.int64)
        if not np.array_equal(whole, values):
            return None
        values = whole
    counts = Counter(values.tolist())  # NumPy's own way imports what scripts may never need
    if len(counts) > _MAX_KINDS:
        return None
    changes = int(np.count_nonzero(values[1:] != values[:-1]))
    return Labels(changes, int(values[0]), int(values[-1]), dict(sorted(counts.items())))
