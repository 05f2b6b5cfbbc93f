"""Parquet files, by pyarrow, which is optional."""

from pathlib import Path

from truestep.errors import UsageError
from truestep.report.table import Table


def write(table: Table, path: Path) -> None:
    """Write one row per step and one column per name; what a step does not have is null."""
    try:
        import pyarrow  # noqa: PLC0415 - optional
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("Parquet files need pyarrow. Install it: pip install 'truestep[parquet]'") from error
    arrays = {"step": pyarrow.array(table.steps)}
    for name, column in table.columns.items():
        arrays[name] = pyarrow.array(column.values, mask=column.is_missing)
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(arrays), path)
