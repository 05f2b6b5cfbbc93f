"""Values of the places on a windy walk, learned from single transitions (TD(0) with a small network)."""

import torch
from torch import nn

DISCOUNT, PLACES = 0.96, 9


class WindyWalk:
    """The walker starts in the middle; the wind blows to the right, where a reward of 1 waits."""

    def __init__(self, generator: torch.Generator):
        self.generator = generator
        self.place = PLACES // 2

    def step(self) -> tuple[int, float, int, bool]:
        before = self.place
        is_right = torch.rand((), generator=self.generator).item() < 0.6
        self.place += 1 if is_right else -1
        is_end = self.place in (0, PLACES - 1)
        reward = 1.0 if self.place == PLACES - 1 else 0.0
        after = self.place
        if is_end:
            self.place = PLACES // 2
        return before, reward, after, is_end


class Critic(nn.Module):
    def __init__(self, width: int = 24):
        super().__init__()
        self.embed = nn.Embedding(PLACES, width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(places)).squeeze(-1)


def gather(walk: WindyWalk, num: int) -> list[torch.Tensor]:
    columns = zip(*(walk.step() for _ in range(num)), strict=True)
    kinds = (torch.long, torch.float32, torch.long, torch.float32)
    return [torch.tensor(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)]


torch.manual_seed(28)
walk = WindyWalk(torch.Generator().manual_seed(28))
critic = Critic()
optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3)
for update in range(80):
    before, reward, after, is_end = gather(walk, 32)
    estimate = critic(before)
    bootstrap = torch.where(is_end > 0, torch.zeros_like(reward), critic(after).detach())
    target = reward + DISCOUNT * bootstrap
    loss = torch.mean(torch.square(target - estimate))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 20 == 19:
        print(f"update {update + 1}: squared error {loss.item():.4f}")
with torch.no_grad():
    print("values:", " ".join(f"{value:.2f}" for value in critic(torch.arange(PLACES)).tolist()))
