"""What happens between host and GPU: waiting for values, copies, and what the device can do.

Owns those calls of a tensor. Put in place only in builds of torch for GPUs; a tensor on the host costs one
look.
"""

from collections.abc import Callable
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]
_SIDE, _TIMES = 2048, 10


def watch(tape: Tape, wraps: Wraps) -> None:
    """Observe `item`, `tolist`, `cpu`, `to` and `cuda` of tensors."""
    if torch.version.cuda is None and torch.version.hip is None:
        return
    for name in ("item", "tolist", "cpu", "to", "cuda"):
        wraps.put(name, lambda act, name=name: _wrap(act, tape, name), torch.Tensor)  # type: ignore[misc]
    tape.listeners["closing"].append(lambda: _note_device(tape))


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _wrap(act: Function, tape: Tape, name: str) -> Function:
    here = tape.sites.here

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Asking a subclass where it lies would call its own code.
        if not tape.is_on or type(self) not in _PLAIN or torch.compiler.is_compiling():
            try:
                return act(self, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
        with torch._C.DisableTorchFunction():
            was_there, is_pinned = self.is_cuda, None
            if not was_there and name in ("to", "cuda"):
                is_pinned = self.is_pinned()
        begun = perf_counter_ns()
        try:
            result = act(self, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        if was_there and not getattr(result, "is_cuda", False):
            tape.mark(("sync", here(), name), begun)
        elif is_pinned is not None and getattr(result, "is_cuda", False):
            tape.mark(("copy", here(), name, is_pinned, bool(kwargs.get("non_blocking"))), begun)
        return result

    return wrapper


def _note_device(tape: Tape) -> None:
    if not torch.cuda.is_initialized():
        return
    tape.note(
        "device",
        torch.cuda.get_device_name(),
        value={
            "tf32": bool(torch.backends.cuda.matmul.allow_tf32),
            "benchmark": bool(torch.backends.cudnn.benchmark),
            "float32_s": _time(torch.float32),
            "bfloat16_s": _time(torch.bfloat16),
        },
    )


def _time(dtype: torch.dtype) -> float:
    """Return how long a large product takes. The script has ended: nobody waits for it."""
    one = torch.ones(_SIDE, _SIDE, dtype=dtype, device="cuda")
    for turn in range(_TIMES + 1):
        if turn == 1:
            torch.cuda.synchronize()
            begun = perf_counter()
        one @ one
    torch.cuda.synchronize()
    return (perf_counter() - begun) / _TIMES
