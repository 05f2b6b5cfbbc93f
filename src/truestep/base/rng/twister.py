"""Setting the two global Mersenne twisters, Python's and NumPy's, to a given state quickly.

Seeding them takes 10 us, twice that in a training loop, whose caches are cold: as much as all the rest of a
step's overhead. Copying 624 words over their state takes 1. Where the memory does not look as expected, the
public calls are used; both ways give the same state.
"""

import ctypes
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy

from truestep.errors import UsageError

NUM_WORDS = 624
"""32-bit words of state. All used up (position 624) means that the next draw begins with these words."""

Row = Any
"""A state as one twister wants it: NUM_WORDS words and the position, in its own order."""

Words: TypeAlias = "numpy.ndarray[Any, numpy.dtype[numpy.uint32]]"


def _view(address: int) -> Any:
    """Return the 625 words at an address as an array that writes through."""
    return numpy.ctypeslib.as_array((ctypes.c_uint32 * (NUM_WORDS + 1)).from_address(address))


class PythonTwister:
    """The generator behind the functions of `random`."""

    def __init__(self) -> None:
        self._generator: random.Random = random.seed.__self__  # type: ignore[attr-defined]
        self._memory = self._find_memory()

    def _find_memory(self) -> Any:
        """Look for the state inside the generator object: its position stands right before its words."""
        kept = random.getstate()
        random.seed(0)
        words = numpy.array(random.getstate()[1][:NUM_WORDS], numpy.uint32)
        size = type(self._generator).__basicsize__
        offset = ctypes.string_at(id(self._generator), size).find(words.tobytes())
        memory = _view(id(self._generator) + offset - words.itemsize) if offset >= words.itemsize else None
        is_as_expected = memory is not None and memory[0] == NUM_WORDS
        random.setstate(kept)
        return memory if is_as_expected else None

    def rows(self, states: Words) -> Sequence[Row]:
        """Return states, one in each line of an array, as `write` wants them."""
        rows = numpy.empty((len(states), NUM_WORDS + 1), numpy.uint32)
        rows[:, 0], rows[:, 1:] = NUM_WORDS, states
        return list(rows)

    def write(self, row: Row) -> None:
        """Set the generator to a state."""
        if self._memory is not None:
            self._memory[:] = row
            self._generator.gauss_next = None  # type: ignore[attr-defined]
        else:
            random.setstate((3, (*row[1:].tolist(), NUM_WORDS), None))

    def is_at(self, row: Row) -> bool:
        """Whether the generator stands at a state, nothing drawn."""
        memory = self._memory
        if memory is not None:
            return bool(memory.item(0) == NUM_WORDS and memory.item(1) == row.item(1))
        return random.getstate() == (3, (*row[1:].tolist(), NUM_WORDS), None)


class NumpyTwister:
    """The generator behind the functions of `numpy.random`, unless somebody replaced it."""

    def __init__(self) -> None:
        self.current = numpy.random.get_bit_generator  # type: ignore[attr-defined]  # public, not in its stubs
        # Kept, because writing into the memory of one that is gone would damage whatever is there now.
        self.generator = self.current()
        self._memory = self._find_memory()
        self._last: Row = None

    def _find_memory(self) -> Any:
        if not isinstance(self.generator, numpy.random.MT19937):
            return None
        memory = _view(self.generator.ctypes.state_address)
        _, words, position, *_ = numpy.random.get_state()
        is_as_expected = numpy.array_equal(memory[:NUM_WORDS], words) and memory[NUM_WORDS] == position
        return memory if is_as_expected else None

    def rows(self, states: Words) -> Sequence[Row]:
        """Return states, one in each line of an array, as `write` wants them."""
        rows = numpy.empty((len(states), NUM_WORDS + 1), numpy.uint32)
        rows[:, :NUM_WORDS], rows[:, NUM_WORDS] = states, NUM_WORDS
        return list(rows)

    def write(self, row: Row) -> None:
        """Set the generator to a state."""
        memory = self._memory
        if self.current() is not self.generator:
            raise UsageError(
                "NumPy's global generator was replaced (numpy.random.set_bit_generator) after truestep had"
                f" seeded it, and is now another {type(self.current()).__name__}. Do not replace it; draw"
                " from a separate generator: numpy.random.default_rng(...)."
            )
        if memory is not None and self._last is not None and self.is_at(self._last):
            memory[:] = row  # nothing was drawn since, so no half of a pair of gaussians is kept
        else:
            numpy.random.set_state(("MT19937", row[:NUM_WORDS], NUM_WORDS, 0, 0.0))
        self._last = row

    def is_at(self, row: Row) -> bool:
        """Whether the generator stands at a state, nothing drawn."""
        memory = self._memory
        if memory is not None:
            return bool(memory.item(NUM_WORDS) == NUM_WORDS and memory.item(0) == row.item(0))
        _, words, position, *_ = numpy.random.get_state()
        return int(position) == NUM_WORDS and numpy.array_equal(words, row[:NUM_WORDS])


def watch(python: PythonTwister, of_numpy: NumpyTwister, *, rows: tuple[Row, Row]) -> Callable[[], bool]:
    """Return a function that tells quickly whether both generators stand at their rows, nothing drawn."""
    if python._memory is None or of_numpy._memory is None:
        return lambda: python.is_at(rows[0]) and of_numpy.is_at(rows[1])
    read_python, read_numpy = python._memory.item, of_numpy._memory.item
    python_first, numpy_first = rows[0].item(1), rows[1].item(0)
    current, generator = of_numpy.current, of_numpy.generator

    def are_at_rows() -> bool:
        return bool(
            current() is generator
            and read_python(0) == NUM_WORDS
            and read_numpy(NUM_WORDS) == NUM_WORDS
            and read_python(1) == python_first
            and read_numpy(0) == numpy_first
        )

    return are_at_rows
