"""BatchNorm's running statistics over lanes: the same bits on any number of processes, torch's own values."""

import copy

import pytest
import torch
from torch import nn

from tests.processes import run_processes
from tests.run.train.lane_norms import CASES, every_case, is_filled, lane_data, net, run_lane, run_passes
from truestep.base.bits import digest_state
from truestep.errors import UsageError
from truestep.run.dist import World
from truestep.run.train.norms import Norms

SIZES = (1, 2, 3, 4, 5)


@pytest.mark.parametrize("num_lanes", [4, 5, 8])
def test_bits_do_not_depend_on_the_number_of_processes(num_lanes: int) -> None:
    alone = {case: run_passes(case, world=World(), num_lanes=num_lanes)[0] for case in CASES}
    assert len(set(alone.values())) == len(CASES)
    for size in SIZES:
        if size <= num_lanes:
            assert run_processes(every_case, num_lanes, size=size) == [alone] * size, f"{size} processes"


def test_bits_depend_on_the_order_of_lanes_but_not_on_when_they_ran() -> None:
    forward = run_passes("plain", world=World(), num_lanes=5)
    assert run_passes("plain", world=World(), num_lanes=5, order=-1) == forward

    model = net("plain")
    renamed = Norms([model], num_lanes=5)
    for at in range(3):
        for lane in range(5):
            renamed.begin_lane()
            run_lane(model, "plain", at, lane)
            renamed.end_lane(4 - lane)
        renamed.finish(World())
    assert digest_state(dict(model.named_buffers())) != forward[0]


@pytest.mark.parametrize("case", [case for case in CASES if case != "half"])
def test_values_are_those_of_torch_running_lane_after_lane(case: str) -> None:
    ours = run_passes(case, world=World(), num_lanes=5)[1]
    model = net(case)
    for at in range(3):
        for lane in range(5):
            if is_filled(case, at, lane):
                run_lane(model, case, at, lane)
    for name, tensor in model.named_buffers():
        if name.endswith("num_batches_tracked"):
            assert tensor.item() == ours[name]
        else:
            # torch rounds after each update; the replay adds the lanes' differences instead.
            torch.testing.assert_close(torch.tensor(ours[name]), tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_single_lane_has_torchs_own_bits(momentum: float | None) -> None:
    model, reference = nn.BatchNorm1d(5, momentum=momentum), nn.BatchNorm1d(5, momentum=momentum)
    norms = Norms([model], num_lanes=3)
    for at in range(4):
        norms.begin_lane()
        model(lane_data(at, 1))
        norms.end_lane(1)
        norms.finish(World())
        reference(lane_data(at, 1))
    # Exactly: the first lane's result is taken as it is, without a rounding of our own.
    assert digest_state(model.state_dict()) == digest_state(reference.state_dict())


def test_frozen_statistics_stay_and_are_seen() -> None:
    model = net("frozen")
    frozen = model.norms[1]
    before = digest_state(frozen.state_dict())
    norms = Norms([model], num_lanes=4)
    for lane in range(4):
        norms.begin_lane()
        assert digest_state(frozen.state_dict()) == before
        run_lane(model, "frozen", 0, lane)
        norms.end_lane(lane)
    norms.finish(World())
    assert digest_state(frozen.state_dict()) == before


def test_a_forward_in_eval_mode_amid_a_lane_sees_real_statistics() -> None:
    model = net("plain")
    expected = copy.deepcopy(model).eval()(lane_data(0, 0))
    norms = Norms([model], num_lanes=3)
    for lane in range(3):
        norms.begin_lane()
        model.eval()
        assert torch.equal(model(lane_data(0, 0)), expected)
        model.train()
        run_lane(model, "plain", 0, lane)
        norms.end_lane(lane)
    norms.finish(World())


def test_a_norm_that_no_lane_used_keeps_its_bits() -> None:
    model = net("plain")
    model.norms[2].running_mean.fill_(-0.0)
    before = digest_state(model.norms[2].state_dict())
    norms = Norms([model], num_lanes=3)
    for lane in range(2):
        norms.begin_lane()
        model(lane_data(0, lane), with_last=False)
        norms.end_lane(lane)
    norms.finish(World())
    assert digest_state(model.norms[2].state_dict()) == before
    assert model.norms[0].num_batches_tracked.item() == 2


def test_a_lane_without_an_end_does_not_count() -> None:
    digests = []
    for fills in (False, True):
        model = net("mixed")
        norms = Norms([model], num_lanes=3)
        for lane in range(2):
            if fills:
                norms.begin_lane()
                model(lane_data(7, 7))
            norms.begin_lane()
            run_lane(model, "mixed", 0, lane)
            norms.end_lane(lane)
        norms.finish(World())
        digests.append(digest_state(dict(model.named_buffers())))
    assert digests[0] == digests[1]


def test_a_shared_norm_counts_once() -> None:
    norm = nn.BatchNorm1d(5)
    norms = Norms([nn.Sequential(norm, nn.Identity(), norm), norm], num_lanes=2)
    norms.begin_lane()
    norm(lane_data(0, 0))
    norms.end_lane(0)
    norms.finish(World())
    assert norm.num_batches_tracked.item() == 1


def test_nothing_to_do_is_false() -> None:
    assert Norms([nn.BatchNorm1d(2)], num_lanes=2)
    assert not Norms([nn.BatchNorm1d(2)], num_lanes=1)
    assert not Norms([nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)], num_lanes=2)


def test_sync_batch_norm_is_refused_with_several_lanes() -> None:
    with pytest.raises(UsageError, match=r"depends on the number of processes\. Use BatchNorm"):
        Norms([nn.Sequential(nn.SyncBatchNorm(3))], num_lanes=2)
    assert not Norms([nn.SyncBatchNorm(3)], num_lanes=1)
