"""Process groups: which rank of how many this process is.

Owns `init_process_group`. What is sent between processes is not observed.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]


def watch(tape: Tape, wraps: Wraps) -> None:
    """Observe the beginning of a process group."""
    if dist.is_available():
        wraps.put("init_process_group", lambda begin: _wrap(begin, tape), dist.distributed_c10d, dist)


def _wrap(begin: Function, tape: Tape) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            result = begin(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        if tape.is_on:
            tape.note("group", dist.get_rank(), dist.get_world_size(), dist.get_backend())
        return result

    return wrapper
