"""A small GAN on points of a circle, two optimizers."""

import argparse

import torch
from torch import nn, optim


def build(nz, hidden):
    g = nn.Sequential(nn.Linear(nz, hidden), nn.ReLU(), nn.Linear(hidden, 2))
    d = nn.Sequential(nn.Linear(2, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, 1))
    return g, d


def real_batch(n):
    angle = torch.rand(n) * 6.2832
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--nz", type=int, default=8)
    ap.add_argument("--bs", type=int, default=64)
    a = ap.parse_args()
    torch.manual_seed(0)
    g, d = build(a.nz, 48)
    opt_g = optim.Adam(g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    opt_d = optim.Adam(d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(a.bs, 1), torch.zeros(a.bs, 1)
    for step in range(a.steps):
        fake = g(torch.randn(a.bs, a.nz))
        d.zero_grad()
        loss_d = bce(d(real_batch(a.bs)), ones) + bce(d(fake.detach()), zeros)
        loss_d.backward()
        opt_d.step()

        g.zero_grad()
        loss_g = bce(d(fake), ones)
        loss_g.backward()
        opt_g.step()
        if step % 40 == 0:
            print(step, loss_d.item(), loss_g.item())


if __name__ == "__main__":
    main()
