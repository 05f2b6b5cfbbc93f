"""A run sent to Weights & Biases, by the package wandb, which is optional."""

from pathlib import Path
from typing import Any, Literal

from truestep.errors import UsageError
from truestep.report.export import open_run
from truestep.report.send.settings import flat_settings
from truestep.report.table import tabulate


def to_wandb(
    run: str | Path,
    *,
    project: str = "truestep",
    name: str | None = None,
    mode: Literal["online", "offline"] | None = None,
    folder: str | Path | None = None,
) -> str:
    """Send losses, values, evaluations, recipe, fingerprint to Weights & Biases; return its id for the run.

    Each call makes a new run there. `mode` "offline" only writes files, into `folder`, for `wandb sync`;
    by default it is WANDB_MODE.
    """
    try:
        import wandb  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UsageError(
            "sending to Weights & Biases needs wandb. Install it: pip install 'truestep[wandb]'"
        ) from error
    live = open_run(run)
    sent: Any = wandb.init(
        project=project,
        name=name or live.folder.resolve().name,
        config=flat_settings(live),
        mode=mode,
        dir=None if folder is None else str(folder),
    )
    for step, row in tabulate(live).rows():
        sent.log(row, step=step)
    run_id = str(sent.id)
    sent.finish()
    return run_id
