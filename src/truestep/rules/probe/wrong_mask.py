"""Attention looks only at padding.

## What it finds
A batch with padding whose attention gives all its weight to the padding: the mask is inverted. The rule
passes one batch through a copy of the model in eval mode.

## Why it matters
With an inverted mask the model never sees its input, only how long it is.

## How to fix
`key_padding_mask` of `nn.MultiheadAttention` and `nn.Transformer` is True at positions to **ignore**.
`attn_mask` of `scaled_dot_product_attention` is True at positions to **attend to**.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.passes import MaskProbed

RULE = Meta(
    code="PROBE10",
    severity="error",
    needs=(MaskProbed,),
    fix="Invert the mask: key_padding_mask is True at padding, attn_mask of SDPA is True at real positions.",
)
_ALL = 0.999


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find masks that hide the input."""
    for moment in evidence.of(MaskProbed):
        facts = moment.facts
        if facts.num_attentions and facts.least_share > _ALL:
            yield Finding.at(
                facts.place or moment,
                "attention looks only at padding: the mask is inverted",
                step=moment.step,
                evidence=f"{facts.num_rows} samples have {facts.num_padding} positions of padding; "
                f"{facts.least_share:.0%} of the attention lies on these, expected 0%",
            )
