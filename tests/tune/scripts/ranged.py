"""A seeded script with what a sweep has to live with: groups with own rates, a schedule, checkpoints."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--closure", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(256, 16)
y = (x @ torch.randn(16, 4)).argmax(1)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(
    [{"params": model[0].parameters(), "lr": 0.02}, {"params": model[2].parameters(), "lr": 0.08}],
    momentum=0.9,
)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


def compute():
    picked = torch.randint(256, (32,))
    loss = F.cross_entropy(model(x[picked]), y[picked])
    optimizer.zero_grad()
    loss.backward()
    return loss


for step in range(args.steps):
    if args.closure:
        optimizer.step(compute)
    else:
        compute()
        optimizer.step()
    print(step, *(group["lr"] for group in optimizer.param_groups), flush=True)
    scheduler.step()
    torch.save(model.state_dict(), "model.pt")
