"""Reading a variable of the script's leaves nothing behind that would keep its tensors alive."""

import sys
import weakref
from typing import Any

from truestep.watch.inspect.training.rates import _variables


class _Sites:
    def is_own(self, name: str) -> bool:
        return name == __file__


class _Tape:
    sites: Any = _Sites()


class _Large:
    """Stands for a tensor."""


def test_a_rate_of_a_function_is_read_and_nothing_is_kept() -> None:
    def step() -> tuple[list[Any], Any]:
        lr, large = 0.1, _Large()
        kept = weakref.ref(large)
        found = list(_variables(_Tape()))  # type: ignore[arg-type]
        del large
        assert lr == 0.1 and sys._getframe() is not None
        return found, kept()

    found, kept = step()
    assert found == [("variable", "lr", 0.1)] and kept is None
