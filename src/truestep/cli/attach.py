"""`truestep attach`: where each rank of a running job stands, and which one the others wait for.

Owns what is printed. Stacks and verdict come from `truestep.hang`.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from truestep.cli._help import Command
from truestep.cli._page import AsFormat, Format
from truestep.errors import UsageError

if TYPE_CHECKING:
    from truestep.hang import Cause, Verdict
    from truestep.hang.attach import Job


def attach(
    pid: Annotated[
        int, typer.Argument(metavar="PID", help="The launcher (torchrun) or any process of the job.")
    ],
    *,
    format_: AsFormat = Format.text,
) -> None:
    """Show where each rank of a hung job stands.

    Reads the stacks of all processes of the job with py-spy, also of jobs that were started without truestep.
    Prints the line of your script on each rank, names the rank that is elsewhere and the likely cause. The
    job is paused for an instant and not changed.

    Install py-spy first: pip install 'truestep[attach]'. You need the right to trace the processes: run as
    the same user, as root, or in a container with SYS_PTRACE.

    Exit codes:
      0  the ranks were read
      2  no such process, no right to read it, or py-spy is missing
      3  a bug in truestep: please report it

    Examples:
      truestep attach 4711
      truestep attach --format json 4711
    """
    from truestep.hang import find_cause, find_verdict
    from truestep.hang.attach import read_job

    job = read_job(pid)
    if len(job.unread) == len(job.standings):
        raise UsageError(
            f"no stack could be read: {job.unread[0]}. Run as root, or allow tracing: "
            "sysctl kernel.yama.ptrace_scope=0; in a container add SYS_PTRACE."
        )
    verdict = find_verdict(job.standings)
    cause = None
    if verdict is not None:
        verdict, cause = find_cause(verdict)
    if format_ is Format.json:
        print(json.dumps(_fields(job, verdict, cause), indent=2))
    else:
        print("\n".join(_lines(job, verdict, cause)))


def _fields(job: "Job", verdict: "Verdict | None", cause: "Cause | None") -> dict[str, Any]:
    return {
        "ranks": [asdict(item) for item in job.standings],
        "workers": [asdict(item) for item in job.workers],
        "unread": job.unread,
        "odd": [item.rank for item in verdict.odd] if verdict is not None else [],
        "cause": asdict(cause) if cause is not None else None,
    }


def _lines(job: "Job", verdict: "Verdict | None", cause: "Cause | None") -> list[str]:
    from truestep.hang.text import as_text, side_lines, where

    num = len(job.standings)
    sides = side_lines(job.standings) if verdict is None else []  # a verdict has them
    lines = [f"{num} rank{'s' * (num != 1)}", *sides, *(f"  not read: {text}" for text in job.unread)]
    for worker in job.workers:
        doing = "waits for a lock" if worker.is_locked else f"is in {worker.call or 'Python'}"
        lines.append(f"  worker of rank {worker.rank} (pid {worker.pid}) {doing}{where(worker.place)}")
    if verdict is not None:
        return [*lines, as_text(verdict, cause)]
    living = [item for item in job.standings if item.doing == "living"]
    if living and len(living) < num:
        names = ", ".join(str(item.rank) for item in living[:8])
        why = f"rank {names} may still continue on its own, and the others wait. Look again in a minute."
    elif living:
        why = "every rank may still continue on its own."
    else:
        why = "all ranks are in the same collective: the network may be slow, or a device is at work."
    return [*lines, "", f"inconclusive: {why}"]


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(cls=Command)(attach)
