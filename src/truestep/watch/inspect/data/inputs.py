"""What models are fed: the range of the first float tensor that an outermost module is called with.

Owns the reading of input values, at the steps that are looked at.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.loading import InputMeasured, Spread
from truestep.watch.inspect.data.samples import array_of
from truestep.watch.script.host import on_host
from truestep.watch.script.leaves import find_tensors
from truestep.watch.script.tape import Tape

_MAX_READ = 4096
_MAX_NOTED = 24
_READABLE = (torch.float32, torch.float64, torch.float16)


def watch(tape: Tape) -> None:
    """Note the range of inputs of training forward passes."""
    noted: dict[int, int] = {}

    def forward_begins(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not tape.is_looked_at or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        number = tape.number("model", module)
        if noted.get(number, 0) >= _MAX_NOTED or isinstance(module, nn.modules.loss._Loss):
            return
        tensor = first_float(args or kwargs)
        if tensor is not None:
            noted[number] = noted.get(number, 0) + 1
            tape.note(_measure(number, tensor))

    tape.listen(near=True, forward_begins=forward_begins)


def first_float(values: Any) -> Tensor | None:
    """Return the first tensor if it is of floats: ids that come first mean that floats are something else."""
    for _, leaf in find_tensors(values):
        is_plain = type(leaf) is Tensor and leaf.layout is torch.strided and not leaf.is_meta
        is_fed = leaf.dtype in _READABLE and not leaf.requires_grad and leaf.grad_fn is None
        is_table = leaf.dim() >= 2 and leaf.numel() > 0 and not leaf.is_neg()
        return leaf if is_plain and is_fed and is_table else None
    return None


def _measure(model: int, tensor: Tensor) -> InputMeasured:
    """Return the range of some of the values; those that are not finite are looked for in all of them."""
    values = array_of(on_host(tensor)).reshape(-1)
    num_infinite = num_nan = 0
    with np.errstate(all="ignore"):
        is_finite = bool(np.isfinite(values.sum()))
    if not is_finite:
        num_infinite, num_nan = int(np.isinf(values).sum()), int(np.isnan(values).sum())
    some = values[:: -(-len(values) // _MAX_READ)].astype(np.float64)
    some = some if is_finite else some[np.isfinite(some)]
    spread = None
    if len(some):
        all_of_them = values if is_finite else some  # the few that are not zero may be missed in some
        low, high = float(all_of_them.min()), float(all_of_them.max())
        spread = Spread(low, high, float(some.mean()), float(some.std()))
    return InputMeasured(model, list(tensor.shape), num_infinite, num_nan, spread)
