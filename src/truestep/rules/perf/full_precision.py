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

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.passes import ForwardPass
from truestep.watch.evidence.facts.surroundings import DeviceMeasured

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
