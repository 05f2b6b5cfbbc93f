"""Grains in small pictures, scored by a slow copy of the network."""

import torch
from torch import nn

torch.manual_seed(12)


class Grains(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, stride=2), nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Linear(width * 9, 3)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(pictures)).flatten(1))


def draw(num: int) -> tuple[torch.Tensor, torch.Tensor]:
    kinds = torch.randint(0, 3, (num,))
    pictures = 4 + torch.randn(num, 1, 8, 8)
    pictures[torch.arange(num), 0, kinds * 2 + 1] += 3
    return pictures, kinds


def follow(slow: nn.Module, fast: nn.Module, rate: float) -> None:
    old, new = dict(slow.named_parameters()), dict(fast.named_parameters())
    for name in old:
        old[name].data.mul_(1 - rate).add_(new[name].data, alpha=rate)


fast, slow = Grains(), Grains()
slow.load_state_dict(fast.state_dict())
slow.requires_grad_(False)
slow.eval()
optimizer = torch.optim.SGD(fast.parameters(), lr=0.05, momentum=0.9)
for step in range(30):
    pictures, kinds = draw(32)
    loss = nn.functional.cross_entropy(fast(pictures), kinds)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    follow(slow, fast, 0.1)
with torch.no_grad():
    pictures, kinds = draw(128)
    scores = slow(pictures)  # expect: PAR20
    print(f"accuracy of the slow copy {(scores.argmax(1) == kinds).float().mean().item():.3f}")
