"""Optimizers that share a network on purpose: mutual information, links, and a critic that is frozen."""

import torch
from torch import nn

torch.manual_seed(15)
softplus, entropy = nn.functional.softplus, nn.functional.cross_entropy


class Judge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2))
        self.score, self.kind = nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.body(points)
        return self.score(found), self.kind(found)


def step_by(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# A generator that is told which kind to draw: both networks learn to keep it.
draw, judge = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 2)), Judge()
drawing = torch.optim.Adam(draw.parameters(), lr=1e-3)
judging = torch.optim.Adam(judge.parameters(), lr=1e-3)
informing = torch.optim.Adam([*draw.parameters(), *judge.parameters()], lr=1e-3)
for step in range(16):
    kinds = torch.randint(0, 3, (16,))
    noise = torch.cat([torch.randn(16, 4), nn.functional.one_hot(kinds, 3)], 1)
    step_by(drawing, softplus(-judge(draw(noise))[0]).mean())
    made = judge(draw(noise).detach())[0]
    step_by(judging, softplus(-judge(torch.randn(16, 2))[0]).mean() + softplus(made).mean())
    step_by(informing, entropy(judge(draw(noise))[1], kinds))

# Links of a graph: the scorer learns more often than the nodes' network, from the same pairs.
nodes, scorer = nn.Linear(5, 8), nn.Linear(8, 1)
whole = torch.optim.SGD([*nodes.parameters(), *scorer.parameters()], lr=0.05)
often = torch.optim.SGD(scorer.parameters(), lr=0.05)
for step in range(16):
    near, far = nodes(torch.randn(16, 5) + 1), nodes(torch.randn(16, 5) - 1)
    step_by(often, softplus(-scorer(near.detach())).mean() + softplus(scorer(far.detach())).mean())
    step_by(whole, softplus(-scorer(near)).mean() + softplus(scorer(far)).mean())

# One optimizer has all for the warm-up; later the critic is frozen while the other one is stepped.
maker, critic = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
both = torch.optim.SGD([*maker.parameters(), *critic.parameters()], lr=0.05)
alone = torch.optim.SGD(critic.parameters(), lr=0.05)
for step in range(16):
    made = maker(torch.randn(16, 4))
    step_by(alone, softplus(-critic(torch.randn(16, 2))).mean() + softplus(critic(made.detach())).mean())
    critic.requires_grad_(False)
    step_by(both, softplus(-critic(maker(torch.randn(16, 4)))).mean())
    critic.requires_grad_(True)
