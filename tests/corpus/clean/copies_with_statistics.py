"""Copies of a network with BatchNorm that get its statistics in several ways, or need none."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(13)


def build(*, tracks: bool = True) -> nn.Sequential:
    norm = nn.BatchNorm1d(12, track_running_stats=tracks)
    return nn.Sequential(nn.Linear(6, 12), norm, nn.ReLU(), nn.Linear(12, 2))


@torch.no_grad()
def follow(copied: nn.Module, source: nn.Module) -> None:
    for old, new in zip(copied.parameters(), source.parameters(), strict=True):
        old.lerp_(new, 0.3)


def score(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    network.eval()
    with torch.no_grad():
        return (network(inputs).argmax(1) == labels).float().mean().item()


online = build()
whole, late, unscored = (copy.deepcopy(online) for _ in range(3))  # all follow the weights
target = copy.deepcopy(online).train()  # normalizes by the batch, and keeps statistics of its own
plain = build(tracks=False)
start = copy.deepcopy(online)  # as it was: what training is compared with
average = AveragedModel(online, multi_avg_fn=get_ema_multi_avg_fn(0.7), use_buffers=True)
plain.load_state_dict(online.state_dict(), strict=False)
optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
inputs = torch.randn(256, 6) * 3 + 2
labels = (inputs[:, 0] * inputs[:, 1] > 4).long()
for epoch in range(3):
    online.train()
    for rows in torch.randperm(192).split(32):
        with torch.no_grad():
            goal = target(inputs[rows]).softmax(1)
        scores = online(inputs[rows])
        loss = nn.functional.cross_entropy(scores, labels[rows])
        loss = loss + 0.1 * nn.functional.cross_entropy(scores, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for copied in (whole, late, unscored, target, plain):
            follow(copied, online)
        state = online.state_dict()
        whole.load_state_dict({name: item.lerp(state[name], 0.3) if item.is_floating_point() else state[name]
                               for name, item in whole.state_dict().items()})
        average.update_parameters(online)
late.load_state_dict({**late.state_dict(), **{name: item for name, item in online.named_buffers()}})
for network in (online, whole, late, target, plain, start, average):
    print(f"{score(network, inputs[192:], labels[192:]):.3f}")
