"""Evidence of a training loop with a costly line."""

from typing import Any

from truestep.rules import Evidence
from truestep.watch import Facts, Moment, Process
from truestep.watch.evidence.facts.optimizing import OptimizerStep


def recorded_loop(facts: Facts, *, every: int = 1) -> Evidence:
    """Return 32 steps of 10 ms; in each `every`-th of them something takes 3 ms."""
    moments: list[Moment[Any]] = []
    for step in range(32):
        common: dict[str, Any] = {"step": step, "file": "train.py", "function": "main"}
        if step % every == 0:
            moments.append(Moment(facts=facts, at_s=step / 100 + 0.005, took_s=0.003, line=5, **common))
        made = OptimizerStep(0, has_closure=False, counts=True, rates=None)
        moments.append(Moment(facts=made, at_s=step / 100 + 0.009, took_s=0.001, line=7, **common))
    return Evidence(processes=[Process(pid=1, argv=[], num_steps=32, moments=moments)])
