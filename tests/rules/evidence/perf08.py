"""Evidence for PERF08 wasted-benchmark."""

from typing import Any

from truestep.rules import Evidence
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.passes import ForwardPass
from truestep.watch.evidence.facts.surroundings import DeviceMeasured


def _recorded(*, num_shapes: int) -> Evidence:
    """32 forward passes; one with a new shape takes ten times as long."""
    common: dict[str, Any] = {"file": "train.py", "function": "main", "line": 6}
    moments: list[Moment[Any]] = []
    for step in range(32):
        shape = [[[8, 3, 32, 32 + step % num_shapes], "torch.float32"]]
        took_s = 0.1 if step < num_shapes else 0.01
        called = ForwardPass(0, is_training=True, is_grad_enabled=True, is_inference=False, tensors=shape)
        moments.append(Moment(facts=called, step=step, at_s=float(step), took_s=took_s, **common))
    device = DeviceMeasured(
        "GPU", is_tf32_allowed=True, is_benchmark_on=True, float32_s=0.004, bfloat16_s=0.001
    )
    moments.append(Moment(facts=device, step=32, at_s=33.0, took_s=0.0, **common))
    return Evidence(processes=[Process(pid=1, argv=[], num_steps=32, moments=moments)])


BUGGY = _recorded(num_shapes=12)
CLEAN = _recorded(num_shapes=1)
