"""The table of a run as a Parquet file."""

from pathlib import Path

from truestep import arrow
from truestep.report.table import Table


def write(table: Table, path: Path) -> None:
    """Write one row per step and one column per name; what a step does not have is null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrow.write_parquet(
        {"step": table.steps, **{name: column.values for name, column in table.columns.items()}},
        path,
        missing={name: column.is_missing for name, column in table.columns.items()},
    )
