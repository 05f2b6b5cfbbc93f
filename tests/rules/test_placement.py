"""Tensors made where and as they are wanted, against made elsewhere and moved."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Counting(TorchDispatchMode):
    """Notes each operation that runs, and the bytes it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        self.names.append(func.__name__.partition(".")[0])
        self.num_bytes += given.nbytes if given.device.type == "cpu" else 0
        return given


@pytest.mark.practice("P15")
def test_p15_a_tensor_made_in_place_needs_no_second_one() -> None:
    """`torch.rand(..., device=, dtype=)` is one operation; made on the host and moved, it is two tensors."""
    with Counting() as direct:
        torch.rand(1000, device="meta")
    with Counting() as moved:
        torch.rand(1000).to("meta")
    assert (direct.names, direct.num_bytes) == (["rand"], 0)
    assert (moved.names, moved.num_bytes) == (["rand", "_to_copy"], 4000)
    with Counting() as direct:
        torch.zeros(1000, dtype=torch.float16)
    with Counting() as moved:
        torch.zeros(1000).half()
    assert (direct.num_bytes, moved.num_bytes) == (2000, 6000)


@pytest.mark.practice("P15")
def test_p15_a_tensor_converted_later_has_the_precision_it_was_made_with() -> None:
    """`torch.rand(n).double()` holds float32 numbers in float64: pass the dtype in the call."""
    torch.manual_seed(0)
    converted = torch.rand(1000).double()
    made = torch.rand(1000, dtype=torch.float64)
    assert torch.equal(converted, converted.float().double())
    assert (made != made.float().double()).float().mean() > 0.99
