"""A run sent to trackio, by the package trackio, which is optional."""

from pathlib import Path
from typing import Any

from truestep.errors import UsageError
from truestep.report.answers import answers
from truestep.report.export import open_run
from truestep.report.measures import settings
from truestep.report.table import tabulate


def to_trackio(
    run: str | Path, *, project: str = "truestep", name: str | None = None, run_id: str | None = None
) -> str:
    """Send losses, values, evaluations, settings and answers to trackio; return the run's name there.

    It writes files on this machine, which `trackio show` displays. Each call makes a new run; `name` is the
    folder's name if not given. With `run_id`, the name of a run that is there, what `check` and `verify`
    answered is added to it, and nothing else is sent.
    """
    try:
        import trackio  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UsageError(
            "sending to trackio needs trackio. Install it: pip install 'truestep[trackio]'"
        ) from error
    live = open_run(run)
    sent: Any = trackio.init(
        project=project,
        name=run_id or name or live.folder.resolve().name,
        config=settings(live.facts) if run_id is None else None,
        resume="never" if run_id is None else "must",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    for step, row in tabulate(live).rows() if run_id is None else ():
        trackio.log(row, step=step)
    for answer in answers(live.facts):
        trackio.log({f"truestep/{answer.command}": trackio.Markdown(answer.markdown)})
        if answer.rows:
            trackio.alert(f"truestep {answer.command}: {answer.line}", text=answer.markdown)
    end: Any = trackio.finish
    end()
    return str(sent.name)
