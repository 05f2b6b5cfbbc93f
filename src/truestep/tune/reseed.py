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


_KEYWORDS = ("seed", "a")
"""The last is that of `random.seed`."""


def reseed(offset: int, tape: Tape) -> None:
    """Shift every seed that the script sets for a global generator, and the one torch begins with.

    A `truestep.Run` derives all of its seeds from the one that it is given.
    """
    torch.default_generator.manual_seed(torch.initial_seed() + offset)
    wraps = Wraps()
    wraps.put("manual_seed", lambda seed: _shifted(seed, offset), torch, torch.random)
    wraps.put("seed", lambda seed: _shifted(seed, offset), random)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        wraps.put("seed", lambda seed: _shifted(seed, offset), numpy.random)
    tape.listeners["run_arrives"].append(
        lambda kind: wraps.put("__init__", lambda init: _shifted(init, offset), kind)
    )


def _shifted(seed: Callable[..., Any], offset: int) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if args:
            args = (_plus(args[0], offset), *args[1:])
        for name in _KEYWORDS:
            if name in kwargs:
                kwargs[name] = _plus(kwargs[name], offset)
        return seed(*args, **kwargs)

    return wrapper


def _plus(seed: Any, offset: int) -> Any:
    return (seed + offset) % (1 << _BITS) if isinstance(seed, int) else seed
