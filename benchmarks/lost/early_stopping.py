# lost: end-not-restored stopper.bad stopper.best
import os
from dataclasses import dataclass

import torch


@dataclass
class Stopper:
    patience: int
    best: float = float("inf")
    bad: int = 0

    def should_stop(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


torch.manual_seed(13)
torch.set_num_threads(1)
train_x, valid_x = torch.randn(32, 3), torch.randn(32, 3)
train_y, valid_y = torch.randn(32), torch.randn(32)
m = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
o = torch.optim.Adam(m.parameters(), lr=0.05)
stopper = Stopper(patience=9)
e = 0
if os.path.exists("es.pt"):
    z = torch.load("es.pt")
    m.load_state_dict(z["m"])
    o.load_state_dict(z["o"])
    e = z["e"]
for e in range(e, 60):
    m.train()
    o.zero_grad()
    (m(train_x)[:, 0] - train_y).pow(2).mean().backward()
    o.step()
    m.eval()
    with torch.no_grad():
        score = (m(valid_x)[:, 0] - valid_y).pow(2).mean().item()
    if stopper.should_stop(score):
        break
    if e % 4 == 3:
        torch.save({"m": m.state_dict(), "o": o.state_dict(), "e": e + 1}, "es.pt")
