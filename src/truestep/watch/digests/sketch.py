"""Sketches of tensors in the script's process: see `evidence.sketch`."""

import math
from collections.abc import Iterable

import numpy as np
from torch import Tensor

from truestep.watch.evidence.sketch import NUM_SUMS, Sketch, sums_of
from truestep.watch.script.nested_tensors import Leaf, no_user_overrides


def sketch(named: Iterable[tuple[str, Leaf]]) -> Sketch:
    """Return a sketch of all floating-point tensors together."""
    square, sums = 0.0, np.zeros(NUM_SUMS)
    with no_user_overrides(), np.errstate(all="ignore"):
        for _, leaf in named:
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.device.type != "meta":
                values = leaf.detach().to("cpu").double().reshape(-1).numpy()
                square += float(values @ values)
                sums += sums_of(values)
    numbers = [math.sqrt(square), *map(float, sums)]
    return [float(f"{number:.10g}") if math.isfinite(number) else None for number in numbers]
