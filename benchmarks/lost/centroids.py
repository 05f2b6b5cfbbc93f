# lost: variable-not-saved model.centroids
import os

import torch
from torch import nn


class Clusters(nn.Module):
    def __init__(self, num, width):
        super().__init__()
        self.encode = nn.Linear(7, width)
        self.centroids = torch.randn(num, width)

    def forward(self, x):
        code = self.encode(x)
        near = torch.cdist(code, self.centroids).argmin(1)
        loss = (code - self.centroids[near]).pow(2).mean()
        with torch.no_grad():
            for k in near.unique():
                self.centroids[k] += 0.05 * (code[near == k].mean(0) - self.centroids[k])
        return loss + 0.01 * (code.var(0) - 1).pow(2).mean()


torch.manual_seed(8)
torch.set_num_threads(1)
model = Clusters(5, 4)
points = torch.randn(200, 7)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
epoch = 0
if os.path.exists("c.pt"):
    state = torch.load("c.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    epoch = state["epoch"]
while epoch < 25:
    loss = model(points)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    epoch += 1
    if epoch % 6 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save({**state, "scheduler": scheduler.state_dict()}, "c.pt")
