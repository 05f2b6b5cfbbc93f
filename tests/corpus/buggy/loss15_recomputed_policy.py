"""PPO for a pointer that follows a target, with a Gaussian policy."""

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(5)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return Normal(self.mean(state), self.log_std.exp()).log_prob(action).squeeze(1)


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
for _ in range(8):
    state = torch.randn(128, 3)
    with torch.no_grad():
        action = Normal(policy.mean(state), policy.log_std.exp()).sample()
        stored = policy(state, action)
    gain = -(action.squeeze(1) - state.sum(1)).abs()
    gain = (gain - gain.mean()) / gain.std()
    for _ in range(3):
        for rows in torch.randperm(128).split(64):
            new = policy(state[rows], action[rows])
            with torch.no_grad():
                old = policy(state[rows], action[rows])
            ratio = (new - old).exp()  # expect: LOSS15
            loss = -torch.min(ratio * gain[rows], ratio.clamp(0.8, 1.2) * gain[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
print(f"spread {policy.log_std.exp().item():.3f}")
