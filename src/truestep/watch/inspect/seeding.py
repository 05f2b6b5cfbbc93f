"""Whether torch's global generator was drawn from before it was seeded for the first time.

Owns that one comparison. Who draws is seen in the operations, who seeds in the moments.
"""

from collections.abc import Callable
from typing import Any

import torch

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]


def watch(tape: Tape, wraps: Wraps) -> None:
    """Compare the generator's state with the one at the start, when it is first seeded."""
    first: list[bytes] = [_state()]

    def make(seed: Function) -> Function:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if first and tape.is_on and _state() != first.pop():
                tape.note("late_seed", "torch")
            try:
                return seed(*args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise

        return wrapper

    wraps.put("manual_seed", make, torch.random, torch)


def _state() -> bytes:
    return torch.default_generator.get_state().numpy().tobytes()
