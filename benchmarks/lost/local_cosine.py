# lost: variable-not-saved ticks
import math
import os

import torch
from torch.utils.data import DataLoader, TensorDataset


def train(model, loader, *, epochs, path):
    opt = torch.optim.AdamW(model.parameters(), lr=1.0)
    start, ticks = 0, 0
    if os.path.exists(path):
        old = torch.load(path)
        model.load_state_dict(old["model"])
        opt.load_state_dict(old["opt"])
        start = old["epoch"]
    total = epochs * len(loader)
    for epoch in range(start, epochs):
        for (x,) in loader:
            for g in opt.param_groups:
                g["lr"] = 0.5e-2 * (1 + math.cos(math.pi * ticks / total))
            loss = (model(x) - x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            ticks += 1
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "epoch": epoch + 1}, path)


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.set_num_threads(1)
    auto = torch.nn.Sequential(torch.nn.Linear(9, 3), torch.nn.GELU(), torch.nn.Linear(3, 9))
    train(auto, DataLoader(TensorDataset(torch.randn(50, 9)), batch_size=10), epochs=5, path="auto.pt")
