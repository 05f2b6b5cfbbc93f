"""Steps of unequal numbers of micro-batches: a first one of another size is found, a short last one not."""

from typing import Any

import pytest

from tests.gathering import run_text
from truestep.rules import find_rules
from truestep.rules.loop.undivided_accumulation import _is_first_uneven

RULE = next(rule for rule in find_rules() if rule.meta.code == "LOOP03")

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
N = 4
for epoch in range(2):
    for step in range(16):
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / N
        loss.backward()
        if {when}:
            optimizer.step()
            optimizer.zero_grad()
"""


def found(when: str, *, optimizer: str = "AdamW") -> list[Any]:
    done = run_text(SCRIPT.format(when=when, optimizer=optimizer))
    assert done.code == 0, done.output
    return list(RULE.check(done.evidence))


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_a_first_step_of_one_micro_batch_is_found(optimizer: str) -> None:
    (finding,) = found("step % N == 0 or step == 15", optimizer=optimizer)
    assert finding.message == "the first step applies 1 micro-batch, and the next ones 4"
    assert finding.line == 15
    assert "1, 4, 4, 4, 3, 1" in finding.evidence


@pytest.mark.parametrize("when", ["(step + 1) % N == 0", "(step + 2) % 5 == 0 or step == 15", "step >= 0"])
def test_equal_steps_and_a_short_last_one_are_not(when: str) -> None:
    assert all("the first step" not in finding.message for finding in found(when))


def test_sizes_that_begin_uneven() -> None:
    for sizes in ([1, 4, 4], [1, 4, 4, 4, 3, 1, 4, 4, 4, 3], [5, 4, 4, 4], [1, 2, 2, 2, 1, 2, 2]):
        assert _is_first_uneven(sizes), sizes


def test_sizes_that_are_equal_grow_or_follow_the_data() -> None:
    for sizes in (
        [1],
        [4, 4, 4, 3],
        [4, 4, 4, 3, 4, 4, 4, 3],
        [1, 1, 1, 1],
        [1, 2, 4, 8],
        [1, 4, 4, 8, 8],
        [1, 1, 4, 4, 4],
        [2, 4, 4, 4],
        [1, 4, 4, 2, 3, 4],
        [1, 3, 3, 2, 3, 2, 3],
    ):
        assert not _is_first_uneven(sizes), sizes
