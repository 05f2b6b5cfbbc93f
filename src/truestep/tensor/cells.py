"""Memory cut into numbered cells: which of them each element lies in, and what of a large tensor is shown.

Owns the arithmetic of drawings. Where tensors lie is found by `explain`; how cells look is up to `drawing`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from truestep.tensor.facts import Account, Memory, TensorFacts, Value

MAX_DIMENSIONS = 4
MAX_SHOWN = 64
"""Elements of one tensor that are shown in full; of a larger one, the first few and the last of each axis."""
MAX_AXIS = 16
_CUT_AXIS = {1: 12, 2: 6, 3: 4, 4: 3}
_LONG = 1e6


def short(value: Value) -> str:
    """Return a number in few letters.

    >>> short(True), short(-3), short(0.12345), short(5010.0), short(1 - 2j)
    ('T', '-3', '0.123', '5010', '1-2j')
    """
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, float):
        words = f"{value:.3g}"
        return f"{value:.0f}" if "e" in words and 1 <= abs(value) < _LONG else words
    if isinstance(value, complex):
        return f"{value.real:.2g}{value.imag:+.2g}j"
    return str(value)


def shown_axis(size: int, *, limit: int) -> list[int | None]:
    """Return the positions of an axis that are shown, None for those left out.

    >>> shown_axis(3, limit=4), shown_axis(9, limit=4)
    ([0, 1, 2], [0, 1, None, 8])
    """
    return list(range(size)) if size <= limit else [*range(limit - 2), None, size - 1]


def shown_axes(shape: Sequence[int]) -> list[list[int | None]]:
    """Return the positions shown of each axis."""
    is_small = prod(shape) <= MAX_SHOWN
    if len(shape) == 1 and is_small:
        return [list(range(shape[0]))]
    limit = MAX_AXIS if is_small else _CUT_AXIS.get(len(shape), 2)
    return [shown_axis(size, limit=limit) for size in shape]


def is_drawable(shape: Sequence[int]) -> bool:
    """Whether a tensor of this shape has cells, in few enough dimensions."""
    return len(shape) <= MAX_DIMENSIONS and prod(shape) > 0


def flat_number(index: Sequence[int], shape: Sequence[int]) -> int:
    """Return the number of an element in reading order.

    >>> flat_number((1, 2), (2, 3))
    5
    """
    number = 0
    for at, size in zip(index, shape, strict=True):
        number = number * size + at
    return number


def locate(distance: int, shape: Sequence[int], *, stride: Sequence[int]) -> tuple[int, ...] | None:
    """Return the index of an element that lies `distance` elements after the first, or None.

    >>> locate(6, (2, 3), stride=(2, 4)), locate(5, (2, 3), stride=(2, 4))
    ((1, 1), None)
    """
    if 0 in shape:
        return None
    # Widest steps first: what is left must be within reach of the narrower ones, so few places are tried.
    order = sorted(range(len(shape)), key=lambda axis: -abs(stride[axis]))
    reach = [(min(0, (shape[a] - 1) * stride[a]), max(0, (shape[a] - 1) * stride[a])) for a in order]

    def search(at: int, left: int) -> tuple[int, ...] | None:
        if at == len(order):
            return () if left == 0 else None
        low, high = (sum(ends[side] for ends in reach[at + 1 :]) for side in (0, 1))
        for place in _places(left - high, left - low, shape[order[at]], stride[order[at]]):
            found = search(at + 1, left - place * stride[order[at]])
            if found is not None:
                return (place, *found)
        return None

    found = search(0, distance)
    return None if found is None else tuple(found[order.index(axis)] for axis in range(len(shape)))


def _places(low: int, high: int, size: int, step: int) -> range:
    """Return the places of an axis whose distance, `place * step`, lies from `low` to `high`."""
    if step == 0:
        return range(1 if low <= 0 <= high else 0)
    if step < 0:
        low, high, step = -high, -low, -step
    return range(max(0, -(-low // step)), min(size - 1, high // step) + 1)


def value_at(tensor: TensorFacts, index: Sequence[int]) -> str:
    """Return an element in few letters; nothing if values are not known."""
    return "" if tensor.values is None else short(tensor.values[flat_number(index, tensor.shape)])


@dataclass(frozen=True)
class Cells:
    """One piece of memory with the tensors that lie in it; a cell is as wide as the smallest element."""

    memory: Memory
    tensors: tuple[TensorFacts, ...]

    @cached_property
    def width(self) -> int:
        """Bytes of a cell."""
        return min([self.memory.item_bytes, *(tensor.item_bytes for tensor in self.tensors)])

    @property
    def count(self) -> int:
        """How many cells there are."""
        return self.memory.num_bytes // self.width

    def of(self, tensor: TensorFacts, index: Sequence[int]) -> range:
        """Return the cells that one element lies in."""
        steps = sum(at * stride for at, stride in zip(index, tensor.stride, strict=True))
        first = (tensor.first_byte + steps * tensor.item_bytes) // self.width
        return range(first, first + max(tensor.item_bytes // self.width, 1))

    def elements_in(self, tensor: TensorFacts, cell: int) -> list[int]:
        """Return the numbers of a tensor's elements in a cell, in reading order; of a large one, only one."""
        if prod(tensor.shape) <= MAX_SHOWN:
            return self._by_cell[tensor].get(cell, [])
        for start in range(cell, cell - self._ratio(tensor), -1):
            distance, rest = divmod(start * self.width - tensor.first_byte, tensor.item_bytes)
            index = locate(distance, tensor.shape, stride=tensor.stride) if rest == 0 else None
            if index is not None:
                return [flat_number(index, tensor.shape)]
        return []

    def _ratio(self, tensor: TensorFacts) -> int:
        return max(tensor.item_bytes // self.width, 1)

    @cached_property
    def _by_cell(self) -> dict[TensorFacts, dict[int, list[int]]]:
        found: dict[TensorFacts, dict[int, list[int]]] = {}
        for tensor in self.tensors:
            ours = found.setdefault(tensor, {})
            if prod(tensor.shape) <= MAX_SHOWN:
                for number, index in enumerate(product(*map(range, tensor.shape))):
                    for cell in self.of(tensor, index):
                        ours.setdefault(cell, []).append(number)
        return found

    def values(self) -> dict[int, str]:
        """Return what is stored in the cells, as far as it is known."""
        memory = self.memory
        if memory.values is not None and memory.item_bytes == self.width:
            return {cell: short(value) for cell, value in enumerate(memory.values)}
        if (
            memory.values is not None
            and memory.dtype.startswith("complex")
            and memory.item_bytes == 2 * self.width
        ):
            parts = [part for value in map(complex, memory.values) for part in (value.real, value.imag)]
            return {cell: short(value) for cell, value in enumerate(parts)}
        # Too much to be listed, or read as something wider: the tensors of the smallest elements know.
        return {
            self.of(tensor, index)[0]: value_at(tensor, index)
            for tensor in reversed(self.tensors)
            if tensor.item_bytes == self.width and tensor.values is not None
            for index in shown_indices(tensor.shape)
        }

    def shown(self) -> list[int | None]:
        """Return the cells to show: all of them, or those of shown elements, with None for each gap."""
        if self.count <= MAX_SHOWN:
            return list(range(self.count))
        wanted = {0, self.count - 1}
        for tensor in self.tensors:
            wanted.update(cell for index in shown_indices(tensor.shape) for cell in self.of(tensor, index))
        cells: list[int | None] = []
        last = -1
        for cell in sorted(wanted):
            if cell - last > 1:
                # A gap of one is no wider than the mark that would stand for it.
                cells.append(last + 1 if cell - last == 2 else None)
            cells.append(cell)
            last = cell
        return cells


def shown_indices(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the indices of the elements that are shown, in reading order."""
    if is_drawable(shape):
        yield from product(*([at for at in axis if at is not None] for axis in shown_axes(shape)))


def cells_of(explanation: Account) -> list[Cells]:
    """Return the pieces of memory of an explanation, those in which one of its tensors lies."""
    pieces = [
        Cells(memory, tuple(tensor for tensor in explanation.tensors if tensor.memory == memory.label))
        for memory in explanation.memories
    ]
    return [piece for piece in pieces if piece.tensors]
