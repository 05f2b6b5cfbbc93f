# lost: variable-not-saved rate.count
import os

import torch
from torch import nn


def make_warmup(base):
    count = 0

    def rate():
        nonlocal count
        count += 1
        return base * min(1.0, count / 20)

    return rate


torch.manual_seed(11)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.1), nn.Linear(12, 1))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
rate = make_warmup(3e-3)
x = torch.randn(96, 6)
y = x[:, :1] * 2 - x[:, 1:2]
done = 0
if os.path.exists("ck.pt"):
    ck = torch.load("ck.pt", weights_only=False)
    net.load_state_dict(ck["net"])
    opt.load_state_dict(ck["opt"])
    torch.set_rng_state(ck["rng"])
    done = ck["done"]
while done < 24:
    rows = torch.randint(0, 96, (16,))
    for group in opt.param_groups:
        group["lr"] = rate()
    opt.zero_grad()
    nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
    opt.step()
    done += 1
    if done % 6 == 0:
        ck = {"net": net.state_dict(), "opt": opt.state_dict(), "rng": torch.get_rng_state(), "done": done}
        torch.save(ck, "ck.tmp")
        os.replace("ck.tmp", "ck.pt")
