"""Short waves, drawn by a network that a critic of patches judges."""

import torch
from torch import nn

torch.manual_seed(14)


class Waves(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.draw = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 24), nn.Unflatten(1, (1, 24)))
        self.judge = nn.Sequential(nn.Conv1d(1, width, 5), nn.LeakyReLU(0.2), nn.Conv1d(width, 1, 5))


def real_waves(num: int) -> torch.Tensor:
    return torch.sin(torch.linspace(0, 6, 24) + 6 * torch.rand(num, 1)).unsqueeze(1)


waves = Waves()
for_drawing = torch.optim.RMSprop(waves.parameters(), lr=1e-4)  # expect: PAR21
for_judging = torch.optim.RMSprop(waves.judge.parameters(), lr=1e-4)
for step in range(30):
    with torch.no_grad():
        drawn = waves.draw(torch.randn(16, 6))
    gap = waves.judge(drawn).mean() - waves.judge(real_waves(16)).mean()
    for_judging.zero_grad()
    gap.backward()
    for_judging.step()
    with torch.no_grad():
        for weight in waves.judge.parameters():
            weight.clamp_(-0.1, 0.1)
    loss = -waves.judge(waves.draw(torch.randn(16, 6))).mean()
    for_drawing.zero_grad()
    loss.backward()
    for_drawing.step()
print(f"gap {gap.item():.4f}")
