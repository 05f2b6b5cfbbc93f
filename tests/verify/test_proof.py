"""Which steps are looked at when two runs part elsewhere each time."""

from types import SimpleNamespace
from typing import Any

import pytest

from truestep.verify.proof import Proof


@pytest.mark.parametrize(("num_operations", "again"), [(3_000, (0, 5)), (30_000, (5, 5))])
def test_all_steps_are_looked_at_together_where_their_operations_are_few(
    monkeypatch: pytest.MonkeyPatch, num_operations: int, again: tuple[int, int]
) -> None:
    windows = []

    def look_at(_proof: Proof, _way: Any, window: tuple[int, int]) -> Any:
        windows.append(window)
        num_steps = window[1] + 1 - window[0]
        ran = SimpleNamespace(first=SimpleNamespace(operations=[None] * (num_operations * num_steps)))
        return ran, ran, None  # this time the two are the same

    monkeypatch.setattr(Proof, "_look_at", look_at)
    anything: Any = None
    Proof(runner=anything, base=anything, tell=print)._look(anything, 5)
    assert windows == [(0, 5), again]
