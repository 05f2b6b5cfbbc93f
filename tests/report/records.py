"""Records for tests, written by the real writer."""

from pathlib import Path
from typing import Any

from truestep.record import Record

NAN = float("nan")


def start(record: Record, cursor: int, **fields: Any) -> None:
    """Write a line as a run does when it begins."""
    facts = {"recipe": {"seed": 7, "lanes": 4}, "fingerprint": {"torch": "2.13", "threads": 1}, **fields}
    record.write(
        "start",
        version=1,
        run="a",
        cursor=cursor,
        pid=1,
        argv=["python", "train.py"],
        **{"processes": 1, "note": "", **facts},
    )


def steps(record: Record, first: int, losses: list[float], *, step_us: int = 1000) -> None:
    """Write steps that took so long each."""
    ends_us = [step_us * (index + 1) for index in range(len(losses))]
    record.write("steps", first=first, loss=losses, end_us=ends_us, wait_us=[100] * len(losses))


def killed_and_resumed(folder: Path) -> Path:
    """A run of 300 steps, killed at 150 and resumed at 120 on two processes."""
    folder.mkdir(parents=True, exist_ok=True)
    record = Record(folder / "record.jsonl")
    start(record, 0)
    record.write("phase", first=0, end=300)
    steps(record, 0, [3.0 - step / 100 for step in range(150)])
    record.write("values", name="grad_norm", steps=list(range(150)), values=[1.0] * 150)
    record.write("evaluate", name="accuracy", cursor=140, value=0.1)
    start(record, 120, processes=2)
    steps(record, 120, [1.8 - step / 100 for step in range(180)])
    record.write("values", name="grad_norm", steps=list(range(120, 300)), values=[2.0] * 180)
    record.write("values", name="learning_rate", steps=[0, 100], values=[0.1, 0.01])
    record.write("evaluate", name="accuracy", cursor=200, value=0.7)
    record.write("evaluate", name="accuracy", cursor=300, value=0.9)
    record.write("lineage", step=120, field="threads", then=1, now=2)
    record.write("end", cursor=300)
    record.close()
    return folder
