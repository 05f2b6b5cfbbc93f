"""Accelerate, with accumulation written by hand."""

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(9, 48), nn.ReLU(), nn.Linear(48, 3))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    x = torch.randn(512, 9)
    y = x[:, :3].argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    every = 4
    for epoch in range(3):
        model.train()
        opt.zero_grad()
        for i, (xb, yb) in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(xb), yb)
            accelerator.backward(loss)  # expect: LOOP03
            if i % every == 0:
                opt.step()
                opt.zero_grad()
        accelerator.print(epoch, loss.item())


main()
