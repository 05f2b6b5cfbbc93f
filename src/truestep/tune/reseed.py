"""Another seed for somebody's script: how much do its losses differ by luck alone.

Owns the shifted seeds. Runs in the script's process.
"""

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps

_BITS = 32
"""NumPy takes no longer seeds."""


def reseed(offset: int, _tape: Tape) -> None:
    """Shift every seed that the script sets for a global generator, and the one torch begins with."""
    torch.default_generator.manual_seed(torch.initial_seed() + offset)
    wraps = Wraps()
    wraps.put("manual_seed", lambda seed: _shifted(seed, offset), torch, torch.random)
    wraps.put("seed", lambda seed: _shifted(seed, offset), random)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        wraps.put("seed", lambda seed: _shifted(seed, offset), numpy.random)


def _shifted(seed: Callable[..., Any], offset: int) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], int):
            args = ((args[0] + offset) % (1 << _BITS), *args[1:])
        return seed(*args, **kwargs)

    return wrapper
