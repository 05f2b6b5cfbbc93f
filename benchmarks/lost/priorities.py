# lost: variable-not-saved sampler.priorities
import os

import numpy as np
import torch

torch.set_num_threads(1)


class Prioritized:
    __slots__ = ("count", "priorities", "rng")

    def __init__(self, count, seed):
        self.count = count
        self.priorities = np.ones(count)
        self.rng = np.random.RandomState(seed)

    def draw(self, size):
        return self.rng.choice(self.count, size=size, p=self.priorities / self.priorities.sum())

    def update(self, rows, errors):
        self.priorities[rows] = errors + 1e-3


def run():
    torch.manual_seed(6)
    x = torch.randn(60, 4)
    y = torch.sin(x).sum(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    sampler = Prioritized(60, 9)
    k = 0
    if os.path.exists("p.pt"):
        s = torch.load("p.pt", weights_only=False)
        net.load_state_dict(s["net"])
        opt.load_state_dict(s["opt"])
        sampler.rng.set_state(s["rng"])
        k = s["k"]
    while k < 25:
        rows = sampler.draw(12)
        error = net(x[rows])[:, 0] - y[rows]
        opt.zero_grad()
        error.pow(2).mean().backward()
        opt.step()
        sampler.update(rows, error.detach().abs().numpy())
        k += 1
        if k % 6 == 0:
            s = {"net": net.state_dict(), "opt": opt.state_dict(), "rng": sampler.rng.get_state(), "k": k}
            torch.save(s, "p.pt")


run()
