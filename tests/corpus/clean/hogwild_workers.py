"""Forked workers that train alone: hogwild."""
import torch
import torch.multiprocessing as mp
from torch import nn


def work(rank, model):
    torch.manual_seed(rank)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(10):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(4, 1).share_memory()
    ps = [mp.Process(target=work, args=(r, model)) for r in range(2)]
    [p.start() for p in ps]
    [p.join() for p in ps]
    print(model.weight)
