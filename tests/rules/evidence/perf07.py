"""Evidence for PERF07 full-precision."""

from typing import Any

from truestep.rules import Evidence
from truestep.watch import Moment, Operation, Process
from truestep.watch.evidence.facts.passes import ForwardPass
from truestep.watch.evidence.facts.surroundings import DeviceMeasured
from truestep.watch.evidence.operation import Out


def _recorded(*, dtype: str) -> Evidence:
    """One forward pass with one product on a device that is four times faster in bfloat16."""
    common: dict[str, Any] = {"step": 0, "file": "train.py", "function": "main"}
    called = ForwardPass(0, is_training=True, is_grad_enabled=True, is_inference=False, tensors=[])
    device = DeviceMeasured(
        "GPU", is_tf32_allowed=False, is_benchmark_on=False, float32_s=0.004, bfloat16_s=0.001
    )
    moments: list[Moment[Any]] = [
        Moment(facts=called, at_s=0.1, took_s=0.01, line=6, **common),
        Moment(facts=device, at_s=0.2, took_s=0.0, line=6, **common),
    ]
    product = Operation(
        index=0,
        thread=0,
        name="aten.mm.default",
        line=6,
        outer_file=None,
        outer_line=None,
        phase="forward",
        module="",
        forward_name=None,
        forward_file=None,
        forward_line=None,
        forward_module=None,
        node=None,
        is_random=False,
        has_generator=False,
        is_uninitialised=False,
        ins=(),
        scalars="",
        outs=(Out("", dtype, (8, 8), None),),
        **common,
    )
    return Evidence(processes=[Process(pid=1, argv=[], moments=moments, operations=[product])])


BUGGY = _recorded(dtype="float32")
CLEAN = _recorded(dtype="bfloat16")
