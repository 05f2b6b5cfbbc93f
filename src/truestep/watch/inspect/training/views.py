"""Views: two passes of a model in a step that are given the same numbers, give the same, and are compared.

Owns the comparison at the steps that are looked at. A few numbers are kept, no tensor of the script's.
"""

import functools
from dataclasses import dataclass
from operator import or_
from typing import Any

import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.passes import ViewsEqual
from truestep.watch.script import parts
from truestep.watch.script.host import on_host
from truestep.watch.script.leaves import find_tensors, is_transformed
from truestep.watch.script.tape import Tape

_MARK = "truestep view"
_MAX_PASSES, _MAX_TENSORS, _MAX_VALUES, _MAX_NODES = 8, 4, 2048, 20_000
_LEAST_VALUES, _LEAST_ROWS, _BOTH = 16, 2, 3
_SUMS = ("AddBackward", "StackBackward")
"""Where two outputs are averaged, or are terms side by side, neither is compared with the other."""


def watch(tape: Tape) -> None:
    """Note equal views at the steps that are looked at."""
    views = _Views(tape)
    tape.attend(views, "forward_ends", "backward_begins", "counted", near=True)


@dataclass(frozen=True)
class _Pass:
    number: int
    model: int
    site: int
    shape: tuple[int, ...]
    given: list[list[float]]
    made: list[float]


class _Views:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._passes: list[_Pass] = []
        self._number = 0

    def counted(self) -> None:
        self._passes = []

    def forward_ends(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._tape.is_looked_at or not torch.is_grad_enabled() or is_transformed():
            return
        given = [leaf for _, leaf in find_tensors((args, kwargs))]
        made = next((leaf for _, leaf in find_tensors(output) if leaf.grad_fn is not None), None)
        if made is None or not 0 < len(given) <= _MAX_TENSORS or len(self._passes) >= _MAX_PASSES:
            return
        samples = [_read(leaf) for leaf in given]
        if any(sample is None for sample in samples) or not _has_rows(given[0]) or not parts.is_plain(made):
            return
        self._number += 1
        node: Any = made.grad_fn
        node.metadata.setdefault(_MARK, self._number)
        self._passes.append(
            _Pass(
                self._number,
                self._tape.number("model", model),
                self._tape.under_way.forward_site,
                tuple(given[0].shape),
                [sample for sample in samples if sample is not None],
                _read(made) or [],
            )
        )

    def backward_begins(self, losses: tuple[Tensor, ...], how: str) -> None:
        passes, self._passes = self._passes, []
        for place, first in enumerate(passes):
            for second in passes[place + 1 :]:
                is_same = (first.model, first.shape, first.given, first.made) == (
                    second.model,
                    second.shape,
                    second.given,
                    second.made,
                )
                if is_same and how == "backward" and _meets(losses, first.number, second.number):
                    table = self._tape.sites.table
                    places = (table[first.site], table[second.site])
                    num_values = sum(map(len, first.given))
                    self._tape.note(ViewsEqual(first.model, *places, list(first.shape), num_values))
                    return


def _has_rows(tensor: Tensor) -> bool:
    return tensor.dim() > 1 and tensor.shape[0] >= _LEAST_ROWS and tensor.numel() >= _LEAST_VALUES


def _read(tensor: Tensor) -> list[float] | None:
    """Return some of a tensor's values, evenly spread; None if they cannot be read."""
    if not parts.is_plain(tensor) or tensor.is_complex() or not tensor.numel():
        return None
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        found: list[float] = on_host(flat[:: max(1, len(flat) // _MAX_VALUES)]).tolist()
    return found


def _meets(losses: tuple[Tensor, ...], first: int, second: int) -> bool:
    """Whether what two passes gave is compared in one operation, row by row, before it is one number."""
    done: dict[Any, int] = {}
    stack: list[tuple[Any, bool]] = [(loss.grad_fn, False) for loss in losses if loss.grad_fn is not None]
    while stack:
        node, is_below_done = stack.pop()
        if is_below_done:
            edges = [(child, index) for child, index in node.next_functions if child is not None]
            masks = [done[child] for child, _ in edges]
            done[node] = functools.reduce(or_, masks, _mask(node, first, second))
            if done[node] == _BOTH and _BOTH not in masks and _is_comparison(node, edges, masks):
                return True
        elif node not in done:
            done[node] = 0
            stack.append((node, True))
            below = [child for child, _ in node.next_functions if child is not None]
            stack.extend((child, False) for child in below if child not in done)
            if len(done) > _MAX_NODES:
                return False
    return False


def _mask(node: Any, first: int, second: int) -> int:
    number: int | None = node.metadata.get(_MARK)
    return int(number == first) + 2 * int(number == second)


def _is_comparison(node: Any, below: list[tuple[Any, int]], masks: list[int]) -> bool:
    if type(node).__name__.startswith(_SUMS):
        return False
    shapes = [
        child._input_metadata[index].shape for (child, index), mask in zip(below, masks, strict=True) if mask
    ]
    return all(len(shape) > 1 and shape[0] >= _LEAST_ROWS for shape in shapes)
