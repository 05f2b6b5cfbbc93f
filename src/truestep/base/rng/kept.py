"""The global generators left as they were: for code that may draw and must not be noticed."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch

from truestep.base.device import module_in_use


@contextmanager
def kept_generators() -> Iterator[None]:
    """Give torch's (CPU and every accelerator in use), Python's and NumPy's generators back as they were.

    >>> before = torch.get_rng_state()
    >>> with kept_generators():
    ...     _ = torch.rand(3)
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    of_python, of_numpy = random.getstate(), numpy.random.get_state()
    module = module_in_use()
    devices = () if module is None else range(module.device_count())
    kind = torch.accelerator.current_accelerator()
    try:
        with torch.random.fork_rng(devices=devices, device_type=kind.type if kind else "cuda"):
            yield
    finally:
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)
