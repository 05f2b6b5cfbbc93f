"""The table of a run as a Parquet file."""

from pathlib import Path

from truestep import arrow
from truestep.report.table import Table
from truestep.runfiles import replacing


def write(table: Table, path: Path) -> None:
    """Write one row per step and one column per name; what a step does not have is null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"step": table.steps, **{name: column.values for name, column in table.columns.items()}}
    missing = {name: column.is_missing for name, column in table.columns.items()}
    with replacing(path) as file:
        arrow.write_parquet(columns, file, missing=missing)
