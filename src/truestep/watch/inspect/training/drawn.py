"""Drawn numbers: a digest of what each draw of torch gives, in the steps whose operations are looked at.

Owns the reading. A draw that says little, such as a mask of nothing but ones, has no digest. What a draw is
for is in the operations themselves.
"""

import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from truestep.watch.evidence.facts.passes import NumbersGiven
from truestep.watch.inspect.data.samples import array_of
from truestep.watch.script.host import on_host
from truestep.watch.script.tape import Tape

_DRAWS = (
    *("bernoulli_.float", "bernoulli.default", "bernoulli.p", "native_dropout.default", "rand.default"),
    *("rand.generator", "rand_like.default", "randn.default", "randn.generator", "randn_like.default"),
    *("normal_.default", "uniform_.default", "normal.Tensor_Tensor", "normal.Tensor_float"),
    *("normal.float_Tensor", "normal.float_float"),
)
_MAX_READ, _LEAST_OTHERS, _MAX_NOTED = 4096, 8, 64


def watch(tape: Tape) -> None:
    """Note what is drawn, except for the first values of weights."""
    if tape.plan.operations is None:
        return
    num_noted = 0

    def read(index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any) -> None:
        nonlocal num_noted
        is_weight = bool(args) and isinstance(args[0], torch.nn.Parameter)
        drawn = result[1] if isinstance(result, tuple) else result
        is_read = num_noted < _MAX_NOTED and not is_weight and isinstance(drawn, Tensor) and not drawn.is_meta
        digest = _digest(drawn) if is_read else None
        if digest is not None:
            num_noted += 1
            tape.note(NumbersGiven(index, digest))

    def counted() -> None:
        nonlocal num_noted
        num_noted = 0

    for name in _DRAWS:
        tape.read_operation(f"aten.{name}", read)
    tape.listen(counted=counted)


def _digest(drawn: Tensor) -> int | None:
    if drawn.numel() <= _LEAST_OTHERS:
        return None
    values = array_of(on_host(drawn.detach().flatten()[:_MAX_READ]))
    _, counts = np.unique(values, return_counts=True)
    return zlib.crc32(values.tobytes()) if len(values) - counts.max() >= _LEAST_OTHERS else None
