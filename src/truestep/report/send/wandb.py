"""A run sent to Weights & Biases, by the package wandb, which is optional."""

from pathlib import Path
from typing import Any, Literal

from truestep.errors import UsageError
from truestep.report.answers import COLUMNS, answers
from truestep.report.export import open_run
from truestep.report.measures import settings
from truestep.report.table import tabulate


def to_wandb(
    run: str | Path,
    *,
    project: str = "truestep",
    name: str | None = None,
    mode: Literal["online", "offline"] | None = None,
    folder: str | Path | None = None,
    run_id: str | None = None,
) -> str:
    """Send losses, values, evaluations, settings and answers to Weights & Biases; return its id for the run.

    Each call makes a new run there. `mode` "offline" only writes files, into `folder`, for `wandb sync`;
    by default it is WANDB_MODE. With `run_id`, what `check` and `verify` answered is added to a run that is
    there, and nothing else is sent.
    """
    try:
        import wandb  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UsageError(
            "sending to Weights & Biases needs wandb. Install it: pip install 'truestep[wandb]'"
        ) from error
    live = open_run(run)
    is_new = run_id is None
    sent: Any = wandb.init(
        project=project,
        name=name or (live.folder.resolve().name if is_new else None),
        config=settings(live.facts) if is_new else None,
        mode=mode,
        dir=None if folder is None else str(folder),
        id=run_id,
        resume=None if is_new else "allow",
    )
    for step, row in tabulate(live).rows() if is_new else ():
        sent.log(row, step=step)
    for answer in answers(live.facts):
        sent.summary[f"truestep/{answer.command}"] = answer.line
        if answer.rows:
            table = wandb.Table(columns=list(COLUMNS), data=[list(row) for row in answer.rows])
            sent.log({f"truestep/{answer.command} findings": table})
    run_id = str(sent.id)
    sent.finish()
    return run_id
