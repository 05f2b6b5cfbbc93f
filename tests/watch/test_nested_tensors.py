"""Tensors are found in any nest; nothing else in it is read."""

from typing import Any

import numpy as np
import pytest
import torch

from truestep.watch.script import nested_tensors
from truestep.watch.script.nested_tensors import find_tensors, outline, walk


class Array(np.ndarray[Any, Any]):
    def tobytes(self, order: Any = "C") -> bytes:
        raise AssertionError("read")


Array.__module__ = "numpy"


def test_outline_reads_no_array() -> None:
    batch = {"mask": np.zeros(3).view(Array), "x": torch.zeros(2, 3)}
    with pytest.raises(AssertionError, match="read"):
        list(walk(batch))
    assert outline(batch) == ((".x", (2, 3), torch.float32),)


def test_only_the_first_items_of_a_large_nest_are_looked_at() -> None:
    num_taken = 0

    class Many(list[int]):
        def __iter__(self) -> Any:
            nonlocal num_taken
            for item in super().__iter__():
                num_taken += 1
                yield item

    assert outline({"ids": Many(range(100_000)), "x": torch.zeros(2)}) == ()
    assert num_taken <= nested_tensors._MAX_ITEMS
    assert outline({"x": torch.zeros(2), "ids": Many(range(100_000))}) == ((".x", (2,), torch.float32),)


def test_tensors_are_found_in_the_order_and_by_the_names_of_the_walk() -> None:
    class Plain:
        def __init__(self) -> None:
            self.a, self.b = torch.zeros(1), [torch.zeros(2), "text", None]

    nest = ({"x": torch.zeros(3), "y": (1, torch.zeros(4))}, Plain(), torch.zeros(5))
    assert [(name, id(item)) for name, item in find_tensors(nest)] == [
        (name, id(item)) for name, item in walk(nest) if isinstance(item, torch.Tensor)
    ]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_a_shape_has_no_outline() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    assert outline((nested,)) == outline([nested, nested]) == outline({"x": nested}) == ()
