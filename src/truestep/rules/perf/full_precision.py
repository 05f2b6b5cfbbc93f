"""Matrix products run in float32 on hardware that is much faster in bfloat16.

## What it finds
Training on a GPU with all products and convolutions in float32 without TF32, where a measurement on the same
device is much faster in bfloat16.

## Why it matters
Tensor cores multiply 16-bit numbers several times faster than 32-bit numbers, and move half the bytes. Most
models train equally well in mixed precision.

## How to fix
Run the forward pass under `torch.autocast("cuda", dtype=torch.bfloat16)`, or at least call
`torch.set_float32_matmul_precision("high")`.
"""

from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment, Operation, Process
from truestep.watch.evidence.facts.passes import ForwardPass
from truestep.watch.evidence.facts.surroundings import DeviceMeasured
from truestep.watch.evidence.operation import Out

RULE = Meta(
    code="PERF07",
    severity="info",
    needs=(DeviceMeasured, ForwardPass),
    fix='Run the forward pass under torch.autocast("cuda", dtype=torch.bfloat16).',
    is_preview=True,
    is_quiet=True,
)
_PRODUCTS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.convolution.", "aten.baddbmm.")
_LEAST_FASTER = 1.5


def check(evidence: Evidence) -> Iterator[Finding]:
    """Compare what is used with what was measured."""
    products = [
        item for item in evidence.operations if item.phase == "forward" and item.name.startswith(_PRODUCTS)
    ]
    kinds = {out.dtype for item in products for out in item.outs}
    device = evidence.of(DeviceMeasured)[-1].facts
    faster = device.float32_s / max(device.bfloat16_s, 1e-9)
    if products and kinds == {"float32"} and not device.is_tf32_allowed and faster >= _LEAST_FASTER:
        yield Finding.at(
            evidence.of(ForwardPass)[0],
            "matrix products run in float32 on a GPU that is much faster in bfloat16",
            evidence=f"{len(products)} products and convolutions in the first steps, all in float32, on "
            f"{device.name}",
            cost=f"a large product takes {faster:.1f} times as long as in bfloat16, measured on this device",
        )


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
