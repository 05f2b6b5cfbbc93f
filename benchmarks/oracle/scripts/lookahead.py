"""An optimizer around another one, with slow weights; state of optimizers that no parameter owns."""

import torch
from torch import nn


class Lookahead:
    def __init__(self, inner):
        self.inner = inner
        self.slow = [[item.detach().clone() for item in group["params"]] for group in inner.param_groups]
        self.num = 0

    @torch.no_grad()
    def step(self):
        self.inner.step()
        self.num += 1
        if self.num % 2 == 0:
            for group, slow in zip(self.inner.param_groups, self.slow, strict=True):
                for item, mine in zip(group["params"], slow, strict=True):
                    mine.lerp_(item, 0.5)
                    item.copy_(mine)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    inner = torch.optim.Adam(model.parameters(), lr=0.01)
    inner.norms = torch.zeros(4)
    inner.state["shared"] = {"scale": torch.ones(3)}
    inner.param_groups[0]["anchor"] = torch.zeros(3)
    optimizer = Lookahead(inner)
    for step in range(5):
        inner.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        inner.norms = torch.stack([item.grad.norm() for item in model.parameters()])
        # plant 0-3: optimizer.slow[0][0] | optimizer.slow[0][3] | inner.norms | inner.state["shared"]["scale"]
        # plant 0-3: inner.param_groups[0]["anchor"] | model[2].weight
        # plant 0-3 large: inner.state[model[2].bias]["exp_avg"]


main()
