"""A run sent to an MLflow server, by the package mlflow, which is optional."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from truestep.errors import UsageError
from truestep.report.answers import CURVE, answers, findings_curve
from truestep.report.export import open_run
from truestep.report.live.state import Live
from truestep.report.measures import settings
from truestep.report.table import tabulate

_BATCH = 1000
"""The most values that MLflow's servers take at once."""
_BATCH_SETTINGS = 100
_MAX_SETTING = 500
_UNKNOWN = re.compile(r"[^\w\-. /]")
"""What MLflow does not take in names."""
_NOTE = "mlflow.note.content"
"""The tag that its page shows as the description, in Markdown."""
_STATUS = {"done": "FINISHED", "stopped": "KILLED", "killed": "KILLED"}

Value = tuple[str, float, int, int]
"""Name, value, time in milliseconds, step."""


def to_mlflow(
    run: str | Path,
    *,
    tracking_uri: str,
    experiment: str = "truestep",
    name: str | None = None,
    run_id: str | None = None,
) -> str:
    """Send losses, values, evaluations, recipe, fingerprint and answers to MLflow; return its id for the run.

    Each call makes a new run there. `name` is the folder's name if not given. With `run_id`, what `check` and
    `verify` answered is added to a run that is there, and nothing else is sent.
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
    if run_id is not None:
        _log(client, run_id, [Metric(*value) for value in _findings(live)])
        _add_answers(client, run_id, live)
        return run_id
    found = client.get_experiment_by_name(experiment)
    experiment_id = found.experiment_id if found is not None else client.create_experiment(experiment)
    started_ms = int(live.lives[0].time_s * 1000) if live.lives else None
    name = name or live.folder.resolve().name
    tags = {"truestep.run": live.facts.run_id}
    sent = client.create_run(experiment_id, start_time=started_ms, run_name=name, tags=tags)
    run_id = str(sent.info.run_id)
    params = [
        Param(_UNKNOWN.sub("_", key), value[:_MAX_SETTING]) for key, value in settings(live.facts).items()
    ]
    for first in range(0, len(params), _BATCH_SETTINGS):
        client.log_batch(run_id, params=params[first : first + _BATCH_SETTINGS])
    _log(client, run_id, [Metric(*value) for value in _values(live)])
    _add_answers(client, run_id, live)
    ended_ms = int(live.facts.last_s * 1000) if live.facts.last_s else None
    client.set_terminated(run_id, status=_STATUS.get(live.status, "RUNNING"), end_time=ended_ms)
    return run_id


def _log(client: Any, run_id: str, metrics: list[Any]) -> None:
    for first in range(0, len(metrics), _BATCH):
        client.log_batch(run_id, metrics=metrics[first : first + _BATCH])


def _add_answers(client: Any, run_id: str, live: Live) -> None:
    """Add a tag and a file for each answer, and all of them below the run's description."""
    found = answers(live.facts)
    for answer in found:
        client.set_tag(run_id, f"truestep.{answer.command}", answer.line)
        client.log_text(run_id, answer.markdown, f"truestep/{answer.command}.md")
    written = client.get_run(run_id).data.tags.get(_NOTE, "")
    new = [answer.markdown for answer in found if answer.markdown not in written]
    if new:
        client.set_tag(run_id, _NOTE, "\n\n".join([written, *new] if written else new))


def _findings(live: Live) -> Iterator[Value]:
    time_ms = int(live.facts.last_s * 1000)
    if live.facts.answers["check"]:
        yield from ((CURVE, value, time_ms, step) for step, value in findings_curve(live.facts))


def _values(live: Live) -> Iterator[Value]:
    for step, row in tabulate(live).rows():
        time_ms = int(row.pop("time_s", live.facts.last_s) * 1000)
        for name, value in row.items():
            yield _UNKNOWN.sub("_", name), value, time_ms, step
