"""Rows of Arrow files: every type comes as pyarrow itself gives it, from any batch, in both formats."""

import datetime
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from truestep.base import arrow
from truestep.errors import UsageError

NUMBERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TYPES: dict[str, tuple[Any, list[Any]]] = {
    **{str(kind): (kind, [1, 0, 100, 7, 5]) for kind in NUMBERS},
    "float": (pa.float32(), [0.5, -1.0, 0.0, 2.0, 3.0]),
    "double": (pa.float64(), [0.1, -1.0, 0.0, 2.0, 3.0]),
    "half": (pa.float16(), [0.5, -1.0, 0.0, 2.0, 3.0]),
    "bool": (pa.bool_(), [True, False, True, True, False]),
    "string": (pa.string(), ["a", "", "grün", "d", "e"]),
    "large_string": (pa.large_string(), ["a", "", "grün", "d", "e"]),
    "binary": (pa.binary(), [b"a", b"", b"ccc", b"d", b"e"]),
    "large_binary": (pa.large_binary(), [b"", b"", b"", b"", b""]),
    "missing": (pa.int64(), [None, 2, None, 4, 5]),
    "missing text": (pa.string(), ["a", None, "", None, "e"]),
    "day": (pa.date32(), [datetime.date(2020, 1, day) for day in range(1, 6)]),
    "category": (pa.dictionary(pa.int8(), pa.string()), ["x", "y", "x", "x", "z"]),
    "record": (pa.struct({"a": pa.int32()}), [{"a": at} for at in range(5)]),
    "list": (pa.list_(pa.int32()), [[1, 2], [], [3], [4, 5, 6], [7]]),
    "fixed list": (pa.list_(pa.float32(), 2), [[at, at + 0.5] for at in range(5)]),
    "list with missing": (pa.list_(pa.int32()), [[1, None], None, [3], [], [7]]),
}
TABLE = pa.table({name: pa.array(values, kind) for name, (kind, values) in TYPES.items()})
EXPECTED = [{name: values[at] for name, (_, values) in TYPES.items()} for at in range(5)]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for name, value in row.items()
    }


def read(path: Path) -> list[dict[str, Any]]:
    rows = arrow.Rows(path)
    found = [rows.read(place) for place in reversed(range(len(rows)))][::-1]
    rows.close()
    return found


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("make", [pyarrow.ipc.new_file, pyarrow.ipc.new_stream])
def test_rows_are_what_pyarrow_says(tmp_path: Path, make: Any, size: int) -> None:
    with make(str(tmp_path / "rows"), TABLE.schema) as writer:
        for first in range(0, 5, size):
            for batch in TABLE.slice(first, size).to_batches():
                writer.write_batch(batch)
    assert [plain(row) for row in read(tmp_path / "rows")] == EXPECTED


def test_rows_that_are_compressed_in_the_file_are_the_same(tmp_path: Path) -> None:
    table = pa.concat_tables([TABLE] * 40).combine_chunks()  # what is tiny is left as it is
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_file(str(tmp_path / "rows"), table.schema, options=options) as writer:
        writer.write_table(table)
    assert [plain(row) for row in read(tmp_path / "rows")] == EXPECTED * 40


def test_a_decoded_parquet_file_has_the_same_rows(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(TABLE, tmp_path / "rows.parquet", row_group_size=2)
    assert arrow.count_parquet(tmp_path / "rows.parquet") == 5
    assert arrow.decode_parquet(tmp_path / "rows.parquet", tmp_path / "rows") == 5
    assert [plain(row) for row in read(tmp_path / "rows")] == EXPECTED


def test_arrays_stay_when_the_file_is_closed(tmp_path: Path) -> None:
    with pyarrow.ipc.new_file(str(tmp_path / "rows"), TABLE.schema) as writer:
        writer.write_table(TABLE)
    (first, *_) = read(tmp_path / "rows")
    first["list"][0] = 9
    assert first["list"].tolist() == [9, 2] and first["list"].dtype == np.int32


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    with pyarrow.ipc.new_stream(str(tmp_path / "rows"), TABLE.schema) as writer:
        writer.write_table(TABLE.slice(0, 0))
    assert read(tmp_path / "rows") == []


def test_what_to_install_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"need pyarrow. Install it: pip install 'truestep\[parquet\]'"):
        arrow.Rows(tmp_path / "rows")
