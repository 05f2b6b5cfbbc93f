"""Gradients summed after backward: the plain way, which every other way must equal to the bit.

Owns `parameter.grad` of the parameters it was given while a step lasts.
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import nn

from truestep.errors import UsageError
from truestep.run.dist.reduce import TreeReduce
from truestep.run.dist.schedule import Schedule
from truestep.run.dist.tree import LaneSum, Tensors, add_tensors


class FlatSum:
    """Sums gradients per subtree while lanes finish, and over processes in one message at the end."""

    def __init__(self, parameters: Sequence[nn.Parameter], tree: TreeReduce) -> None:
        self.parameters = list(parameters)
        self._tree = tree
        self.lanes = LaneSum[Tensors](add_tensors)
        """The sum over this process's lanes so far."""
        # Parameters of one dtype and device go in one message.
        order = sorted(range(len(self.parameters)), key=self._kind)
        self._packs = [_Pack(self.parameters, list(group)) for _, group in groupby(order, self._kind)]

    def _kind(self, index: int) -> tuple[str, str]:
        parameter = self.parameters[index]
        return str(parameter.dtype), str(parameter.device)

    witness = 0
    """Of gradients that are not in `parameter.grad`: there are none."""

    sends_early = False
    """Whether gradients leave while backward runs, so that a lane can have only one."""

    def begin(self, schedule: Schedule, *, may_overlap: bool) -> None:
        """Start a pass over a batch."""

    def begin_lane(self, turn: int | None, *, is_watched: bool = False) -> None:
        """Start a lane: that of a round, or one that is computed only to be looked at."""

    def end_lane(self, lane: int | None) -> None:
        """Take one lane's gradients into the sum; None if the lane is not this process's own."""
        gradients = [parameter.grad for parameter in self.parameters]
        if lane is not None:
            _refuse_sparse(gradients)
            self.lanes.push(lane, gradients)
        self.clear()

    def finish(self) -> None:
        """Put the sum over all lanes where the optimizers look for it."""
        if self._tree.size == 1:
            for parameter, gradient in zip(self.parameters, self.lanes.take(), strict=True):
                parameter.grad = gradient
            return
        nodes = self.lanes.take_nodes(self._tree.nodes)
        for pack in self._packs:
            total = self._tree.all_reduce([pack.fill(number, node) for number, node in enumerate(nodes)])
            pack.hand_out(total)

    def clear(self) -> None:
        """Forget all gradients: what the next backward gives is new."""
        for parameter in self.parameters:
            parameter.grad = None


class _Pack:
    """The gradients of some parameters in one flat tensor, with a mark for each that is there."""

    def __init__(self, parameters: list[nn.Parameter], indices: list[int]) -> None:
        self._indices = indices
        self._parameters = [parameters[index] for index in indices]
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self._buffers: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def fill(self, number: int, node: Tensors | None) -> torch.Tensor:
        """Return the flat tensor of one subtree; buffers are kept from step to step."""
        if number not in self._buffers:
            like = self._parameters[0]
            flat = torch.empty(sum(self._sizes) + len(self._sizes), dtype=like.dtype, device=like.device)
            *parts, _ = flat.split([*self._sizes, len(self._sizes)])
            views = [
                part.view(parameter.shape) for part, parameter in zip(parts, self._parameters, strict=True)
            ]
            self._buffers[number] = flat, views
        flat, views = self._buffers[number]
        gradients = [None] * len(views) if node is None else [node[index] for index in self._indices]
        pairs = [(view, grad) for view, grad in zip(views, gradients, strict=True) if grad is not None]
        if len(pairs) < len(views):
            # bits: x + -0.0 is x for every x, so what is not there changes no bit of what is.
            flat.fill_(-0.0)
            marks = [grad is not None for grad in gradients]
            flat[-len(views) :][torch.tensor(marks, device=flat.device)] = 1.0
        else:
            flat[-len(views) :].fill_(1.0)
        if pairs:
            torch._foreach_copy_([view for view, _ in pairs], [gradient for _, gradient in pairs])
        return flat

    def hand_out(self, total: torch.Tensor) -> None:
        """Give every parameter its part of the sum; one that no lane has a gradient for gets none."""
        *parts, marks = total.split([*self._sizes, len(self._sizes)])
        for parameter, part, mark in zip(self._parameters, parts, marks.tolist(), strict=True):
            parameter.grad = part.view(parameter.shape) if mark > 0 else None


def _refuse_sparse(gradients: Tensors) -> None:
    if any(gradient is not None and gradient.is_sparse for gradient in gradients):
        raise UsageError(
            "sparse gradients cannot be summed over lanes in a fixed order. "
            "Use sparse=False in the embedding, or lanes=1."
        )
