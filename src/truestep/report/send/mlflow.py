"""A run sent to an MLflow server, by the package mlflow, which is optional."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from truestep.errors import UsageError
from truestep.report.export import open_run
from truestep.report.live.state import Live
from truestep.report.send.settings import flat_settings
from truestep.report.table import tabulate

_BATCH = 1000
"""The most values that MLflow's servers take at once."""
_BATCH_SETTINGS = 100
_MAX_SETTING = 500
_UNKNOWN = re.compile(r"[^\w\-. /]")
"""What MLflow does not take in names."""


def to_mlflow(
    run: str | Path, *, tracking_uri: str, experiment: str = "truestep", name: str | None = None
) -> str:
    """Send losses, values, evaluations, recipe and fingerprint to MLflow; return its id for the run.

    Each call makes a new run there. `name` is the folder's name if not given.
    """
    try:
        from mlflow.entities import Metric, Param  # noqa: PLC0415 - optional
        from mlflow.tracking import MlflowClient  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "sending to MLflow needs mlflow. Install it: pip install 'truestep[mlflow]'"
        ) from error
    live = open_run(run)
    client: Any = MlflowClient(tracking_uri=tracking_uri)
    found = client.get_experiment_by_name(experiment)
    experiment_id = found.experiment_id if found is not None else client.create_experiment(experiment)
    started_ms = int(live.lives[0].started_s * 1000) if live.lives else None
    name = name or live.folder.resolve().name
    tags = {"truestep.run": live.facts.run_id}
    sent = client.create_run(experiment_id, start_time=started_ms, run_name=name, tags=tags)
    run_id = str(sent.info.run_id)
    settings = [
        Param(_UNKNOWN.sub("_", key), value[:_MAX_SETTING]) for key, value in flat_settings(live).items()
    ]
    for first in range(0, len(settings), _BATCH_SETTINGS):
        client.log_batch(run_id, params=settings[first : first + _BATCH_SETTINGS])
    batch: list[Any] = []
    for key, value, time_ms, step in _values(live):
        batch.append(Metric(_UNKNOWN.sub("_", key), value, time_ms, step))
        if len(batch) == _BATCH:
            client.log_batch(run_id, metrics=batch)
            batch = []
    client.log_batch(run_id, metrics=batch)
    ended_ms = int(live.facts.last_s * 1000) if live.facts.last_s else None
    client.set_terminated(run_id, status=_STATUS.get(live.status, "RUNNING"), end_time=ended_ms)
    return run_id


_STATUS = {"done": "FINISHED", "stopped": "KILLED", "killed": "KILLED"}


def _values(live: Live) -> Iterator[tuple[str, float, int, int]]:
    """Every value with its name, time and step."""
    for step, row in tabulate(live).rows():
        time_ms = int(row.pop("time_s", live.facts.last_s) * 1000)
        for name, value in row.items():
            yield name, value, time_ms, step
