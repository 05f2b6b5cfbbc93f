"""Another seed for somebody's script: how much do its losses differ by luck alone.

Owns the shifted seeds. Runs in the script's process.
"""

import random  # noqa: F401 - its hook needs it
import sys
from typing import Any

import torch

from truestep.watch.hooks.table import Function, Hook, put
from truestep.watch.script.tape import Tape

_BITS = 32
"""NumPy takes no longer seeds."""


_KEYWORDS = ("seed", "a")
"""The last is that of `random.seed`."""


def reseed(offset: int, tape: Tape) -> None:
    """Shift every seed that the script sets for a global generator, and the one torch begins with.

    A `truestep.Run` derives all of its seeds from the one that it is given.
    """
    torch.default_generator.manual_seed(torch.initial_seed() + offset)
    put(
        tape,
        [
            _hook("torch.manual_seed", offset, also=("torch.random.manual_seed",)),
            _hook("random.seed", offset),
            *([_hook("numpy.random.seed", offset)] if "numpy" in sys.modules else ()),
        ],
    )
    tape.listen(run_arrives=lambda _kind: put(tape, [_hook("truestep.run.train.run.Run.__init__", offset)]))


def _hook(target: str, offset: int, also: tuple[str, ...] = ()) -> Hook:
    return Hook(target, _shift, also=also, given=(offset,), changes=True)


def _shift(offset: int, seed: Function, /, *args: Any, **kwargs: Any) -> Any:
    if args:
        args = (_plus(args[0], offset), *args[1:])
    for name in _KEYWORDS:
        if name in kwargs:
            kwargs[name] = _plus(kwargs[name], offset)
    return seed(*args, **kwargs)


def _plus(seed: Any, offset: int) -> Any:
    return (seed + offset) % (1 << _BITS) if isinstance(seed, int) else seed
