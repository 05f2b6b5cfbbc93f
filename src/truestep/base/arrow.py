"""Columns on disk: Parquet and Arrow files.

Owns pyarrow, which is optional. What the columns mean is up to those who write and read them.
"""

import mmap
import struct
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from truestep.errors import ShardUnreadable, UsageError

_ROWS_AT_ONCE = 4096
_FILE_MAGIC = b"ARROW1"

Row = dict[str, Any]
ReadCell = Callable[[int], Any]
_NUMBERS = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float": "f",
    "double": "d",
}
"""Types of columns, as `memoryview` calls them."""
_TEXTS = {
    "binary": ("i", False),
    "large_binary": ("q", False),
    "string": ("i", True),
    "large_string": ("q", True),
}
"""Types of columns with slices of one buffer: how their offsets are stored, and whether they are text."""


def _pyarrow() -> Any:
    try:
        import pyarrow  # noqa: PLC0415 - optional
        import pyarrow.ipc  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "Parquet and Arrow files need pyarrow. Install it: pip install 'truestep[parquet]'"
        ) from error
    return pyarrow


def count_parquet(source: Any) -> int:
    """Return the number of rows that a Parquet file's footer tells; `source` is a path or an open file."""
    with _pyarrow().parquet.ParquetFile(source) as file:
        return int(file.metadata.num_rows)


def decode_parquet(source: Path, target: Path) -> int:
    """Write a Parquet file's rows as Arrow, a few thousand at a time, and return how many they are."""
    pyarrow = _pyarrow()
    num_rows = 0
    # The stream format: in the file format a dictionary could not change between row groups.
    with (
        pyarrow.parquet.ParquetFile(str(source), memory_map=True) as file,
        pyarrow.OSFile(str(target), "wb") as sink,
        pyarrow.ipc.new_stream(sink, file.schema_arrow) as writer,
    ):
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, use_threads=False):
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


class Rows:
    """An Arrow file or stream, mapped into memory: any row as a dictionary, nothing read ahead.

    A list of numbers is given as a NumPy array of its own, everything else as plain Python values.
    """

    def __init__(self, path: Path) -> None:
        self._pyarrow = _pyarrow()
        self._source = self._pyarrow.memory_map(str(path))
        try:
            self._batches = self._map()
            # Once more: a slice of this one is bytes at once, one of pyarrow's buffers is an object before.
            with path.open("rb") as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except BaseException:
            self._source.close()
            raise
        self._starts: list[int] = list(accumulate((batch.num_rows for batch in self._batches), initial=0))
        self._cells: list[list[tuple[str, ReadCell]] | None] = [None] * len(self._batches)

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, place: int) -> Row:
        """Return one row."""
        number = bisect_right(self._starts, place) - 1
        cells = self._cells[number]
        if cells is None:
            batch = self._batches[number]
            columns = zip(batch.schema.names, batch.columns, strict=True)
            cells = [(name, self._reader(column)) for name, column in columns]
            self._cells[number] = cells
        at = place - self._starts[number]
        return {name: read(at) for name, read in cells}

    def close(self) -> None:
        """Give the file free; arrays that were handed out are copies and stay."""
        self._cells, self._batches = [], []
        self._content.close()
        self._source.close()

    def _map(self) -> list[Any]:
        ipc = self._pyarrow.ipc
        begin = self._source.read_buffer(len(_FILE_MAGIC))
        self._begin = begin.address
        if begin == _FILE_MAGIC:
            reader = ipc.open_file(self._source)
            return [reader.get_batch(number) for number in range(reader.num_record_batches)]
        self._source.seek(0)
        return list(ipc.open_stream(self._source))

    def _reader(self, column: Any) -> ReadCell:
        """Return the quickest way to a column's values: pyarrow's own makes an object for each of them."""
        kind, types = column.type, self._pyarrow.types
        if column.null_count == 0 and len(column):
            if str(kind) in _NUMBERS:
                read: ReadCell = _values(column, _NUMBERS[str(kind)]).__getitem__
                return read
            if str(kind) in _TEXTS:
                return _read_slices(column, *_TEXTS[str(kind)], content=self._slices(column))
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if is_list and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
            return partial(_numbers, column)
        return partial(_value, column)

    def _slices(self, column: Any) -> tuple[Any, int]:
        """Return what a column's slices are cut out of, and where in it they begin."""
        buffer = column.buffers()[2]
        if buffer is None:
            return b"", 0
        start = buffer.address - self._begin
        # One that was compressed in the file is elsewhere in memory.
        return (self._content, start) if 0 <= start < len(self._content) else (memoryview(buffer), 0)


def _values(column: Any, form: str, *, num_more: int = 0) -> Any:
    """Return a column's numbers, or the offsets of its slices, as they are in memory."""
    content: Any = memoryview(column.buffers()[1] or b"").cast("B")
    size = (column.offset + len(column) + num_more) * struct.calcsize(form)
    if size > len(content):
        raise ShardUnreadable(
            "a column has fewer bytes than its rows need: the file is damaged. Write it again, or skip it"
            " with skip=[...]."
        )
    return content[:size].cast(form)[column.offset :]


def _read_slices(column: Any, form: str, is_text: bool, *, content: tuple[Any, int]) -> ReadCell:
    offsets = _values(column, form, num_more=1)
    values, start = content

    def read_bytes(at: int) -> bytes:
        return bytes(values[start + offsets[at] : start + offsets[at + 1]])

    def read_text(at: int) -> str:
        return str(values[start + offsets[at] : start + offsets[at + 1]], "utf-8")

    return read_text if is_text else read_bytes


def _value(column: Any, at: int) -> Any:
    return column[at].as_py()


def _numbers(column: Any, at: int) -> Any:
    values = column[at].values
    if values is None or values.null_count:
        return column[at].as_py()
    return values.to_numpy(zero_copy_only=False).copy()
