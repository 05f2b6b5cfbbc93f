"""Sharded gradients: what stays in memory between the rounds of a batch."""

import torch

from truestep.run.dist.shard import _let_go


def test_a_message_is_let_go_once_its_parts_are_summed() -> None:
    received = torch.arange(8.0)
    parts = received.view(4, -1)
    sums = {(0, 4): parts[0], (8, 2): torch.ones(2)}
    other = sums[8, 2]
    _let_go(received, sums, num_parts=4)
    assert sums[0, 4].tolist() == [0.0, 1.0] and sums[0, 4].untyped_storage().nbytes() == 8
    assert sums[8, 2] is other


def test_a_message_of_which_all_is_needed_is_not_copied() -> None:
    received = torch.arange(8.0)
    sums = {(2 * lane, 1): part for lane, part in enumerate(received.view(4, -1))}
    before = dict(sums)
    _let_go(received, sums, num_parts=4)
    assert all(sums[node] is before[node] for node in sums)
