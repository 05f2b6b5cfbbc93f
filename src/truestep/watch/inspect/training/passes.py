"""What models were given between one backward pass and the next, at the steps that are looked at.

Owns telling whether two backward passes are about different samples.
"""

from math import gcd
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from truestep.watch.script.nested_tensors import find_tensors
from truestep.watch.script.tape import Tape

_MAX_TENSORS, _NUM_VALUES, _MAX_OUTPUTS = 4, 32, 64


class PassInputs:
    """Fingerprints of what the first module since the last backward pass was given, and who made it."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.is_close = False
        """Whether the last backward pass was looked at."""
        self.num_grad_calls = 0
        self.num_forwards = 0
        self.inputs: int | None = None
        self.is_chained = False
        self.loaders: set[int] = set()
        self._outputs: set[StorageWeakRef] = set()

    def end_pass(self) -> None:
        """What comes now belongs to the next pass."""
        self.inputs = None
        self.is_chained = False
        self.num_forwards = self.num_grad_calls = 0
        self.loaders = set()

    def forget(self) -> None:
        """A step is over."""
        self._outputs = set()

    def batch(self, loader: int, _batch: Any) -> None:
        """A loader has handed out a batch."""
        self.loaders.add(loader)

    def forward_begins(  # limits: the tape calls it like this
        self, _module: Any, args: Any, kwargs: Any
    ) -> None:
        """An outermost module is called."""
        if not (self.is_close or self._tape.is_looked_at) or not torch.is_grad_enabled():
            return
        self.num_forwards += 1
        if self.num_forwards == 1:
            given = _tensors((args, kwargs))
            self.inputs = hash(tuple(map(_print, given)))
            self.is_chained = any(StorageWeakRef(item.untyped_storage()) in self._outputs for item in given)

    def forward_ends(  # limits: the tape calls it like this
        self, _module: Any, _args: Any, _kwargs: Any, output: Any
    ) -> None:
        """It has returned something."""
        if (self.is_close or self._tape.is_looked_at) and len(self._outputs) < _MAX_OUTPUTS:
            self._outputs |= {StorageWeakRef(item.untyped_storage()) for item in _tensors(output)}


def _tensors(nest: Any) -> list[Tensor]:
    found = [leaf for _, leaf in find_tensors(nest) if type(leaf) is Tensor and leaf.layout is torch.strided]
    return [item for item in found if not item.is_meta][:_MAX_TENSORS]


def _print(tensor: Tensor) -> tuple[Any, ...]:
    """Return the shape and a few values, not all of one column: the corners of pictures are alike."""
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().flatten()
    stride = max(1, flat.numel() // _NUM_VALUES)
    while gcd(stride, flat.numel()) > 1:
        stride += 1
    return (tuple(tensor.shape), *flat[::stride][:_NUM_VALUES].tolist())
