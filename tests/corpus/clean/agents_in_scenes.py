"""Set of agents over time; attention across agents and across time, no loader."""
import torch
from torch import nn

torch.manual_seed(6)


class Social(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.inp, self.time, self.agents, self.out = nn.Linear(2, d), nn.MultiheadAttention(d, 2, batch_first=True), nn.MultiheadAttention(d, 2), nn.Linear(d, 2)

    def forward(self, tracks):
        h = self.inp(tracks)
        h = h + self.time(h, h, h)[0]
        h = h + self.agents(h, h, h)[0]
        return self.out(h[:, -1])


net = Social()
opt = torch.optim.Adam(net.parameters(), 2e-3)
for scene in range(40):
    n = 6
    v = torch.randn(n, 1, 2) * 0.2
    tracks = torch.randn(n, 1, 2) + v * torch.arange(9).view(1, -1, 1) + 0.02 * torch.randn(n, 9, 2)
    loss = nn.functional.mse_loss(net(tracks[:, :8]), tracks[:, 8])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if scene % 10 == 0:
        print(scene, loss.item())
