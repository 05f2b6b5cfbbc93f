"""Passes over lanes through models with BatchNorm, in this process or several."""

import torch
from torch import nn

from truestep.base.bits import digest_state
from truestep.run.dist import World, join, lanes_of
from truestep.run.train.norms import Norms

CASES = ("plain", "cumulative", "mixed", "frozen", "several", "gaps", "short", "half")


class Net(nn.Module):
    """Three norms, of which forward can leave one out."""

    def __init__(self, *momenta: float | None) -> None:
        super().__init__()
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(width, momentum=momentum)
            for width, momentum in zip((5, 3, 7), momenta, strict=True)
        )
        self.maps = nn.ModuleList([nn.Linear(5, 3), nn.Linear(3, 7)])

    def forward(self, x: torch.Tensor, with_last: bool = True) -> torch.Tensor:
        x = self.maps[0](self.norms[0](x))
        x = self.maps[1](self.norms[1](x))
        return self.norms[2](x) if with_last else x


def net(case: str) -> Net:
    torch.manual_seed(5)
    momenta = {"cumulative": (None, None, None), "mixed": (0.1, None, 0.7)}.get(case, (0.1, 0.1, 0.3))
    model = Net(*momenta)
    if case == "frozen":
        model.norms[1].eval()
        model.norms[1].running_mean.normal_()
    return model.bfloat16() if case == "half" else model


def lane_data(at: int, lane: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(1000 * at + lane)
    return torch.randn(4, 5, generator=made) * (1 + lane) + 0.3 * at


def is_filled(case: str, at: int, lane: int) -> bool:
    """In a short pass most lanes are empty, and with them most processes."""
    return case != "short" or at != 1 or lane == 2


def run_lane(model: Net, case: str, at: int, lane: int) -> None:
    x = lane_data(at, lane)
    x = x.bfloat16() if case == "half" else x
    for _ in range(1 + lane % 3 if case == "several" else 1):
        model(x, with_last=case != "gaps" or lane % 2 == 0)


def run_passes(case: str, *, world: World, num_lanes: int, order: int = 1) -> tuple[str, dict[str, object]]:
    model = net(case)
    norms = Norms([model], num_lanes=num_lanes)
    for at in range(3):
        lanes = [
            lane
            for lane in lanes_of(world.rank, size=world.size, num_lanes=num_lanes)
            if is_filled(case, at, lane)
        ]
        for lane in lanes[::order]:
            norms.begin_lane()
            run_lane(model, case, at, lane)
            norms.end_lane(lane)
        norms.finish(world)
    state = dict(model.named_buffers())
    return digest_state(state), {name: tensor.tolist() for name, tensor in state.items()}


def every_case(num_lanes: int) -> dict[str, str]:
    world = join()
    return {case: run_passes(case, world=world, num_lanes=num_lanes)[0] for case in CASES}
