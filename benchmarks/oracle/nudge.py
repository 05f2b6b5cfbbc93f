"""Changes one element of what it is given, by a number from elsewhere. It is copied beside each script."""

from pathlib import Path

import numpy as np
import torch

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


_log = Path(__file__).with_name("log.txt")


def nudge(value, number, size):
    """Change an element of a tensor, array or list behind torch's back: `ulp` in its last bits, else by more.

    It does so once in a run. A number of zero changes nothing. What was done is added to a file.
    """
    global _log
    log, _log = _log, None
    if log is None:
        return
    if isinstance(value, list):
        place = number % len(value)
        amount = (1 + number // len(value) % 1000) * (1e-12 if size == "ulp" else 1.0)
        value[place] += amount if number else 0.0
    else:
        place, amount = _nudge_elements(value, number, size)
    with Path(log.read_text()).open("a") as file:
        file.write(f"{place} {amount}\n" if number else "nothing\n")


def _nudge_elements(value, number, size):
    tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    flat = tensor.data.view(-1)
    place, rest = number % flat.numel(), number // flat.numel()
    if not number:
        return place, 0
    if flat.dtype == torch.bool:
        flat[place] = not flat[place]
        return place, 1
    if size == "ulp" or not flat.is_floating_point():
        amount = 1 + rest % 7
        flat.view(_BITS[flat.element_size()])[place] ^= amount
    else:
        amount = (1 + rest % 1000) * (1e-3 if size == "small" else 1.0)
        flat[place] += amount
    return place, amount
