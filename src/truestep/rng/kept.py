"""The global generators left as they were: for code that may draw and must not be noticed."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch


@contextmanager
def kept_generators() -> Iterator[None]:
    """Give torch's (CPU and every GPU in use), Python's and NumPy's generators back as they were.

    >>> before = torch.get_rng_state()
    >>> with kept_generators():
    ...     _ = torch.rand(3)
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    of_python, of_numpy = random.getstate(), numpy.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # untested on a GPU
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)
