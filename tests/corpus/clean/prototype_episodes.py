"""Prototypical network: forward takes support and query, of equal size."""
import torch
from torch import nn
import torch.nn.functional as F


class Proto(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 16))

    def forward(self, support, query, way):
        z = self.enc(support).view(way, -1, 16).mean(1)
        q = self.enc(query)
        return -torch.cdist(q, z)


def episode(way=5, shot=4):
    centre = torch.randn(way, 1, 1, 6, 6)
    s = (centre + 0.3 * torch.randn(way, shot, 1, 6, 6)).flatten(0, 1)
    q = (centre + 0.3 * torch.randn(way, shot, 1, 6, 6)).flatten(0, 1)
    return s, q, torch.arange(way).repeat_interleave(shot)


torch.manual_seed(2)
net = Proto()
opt = torch.optim.Adam(net.parameters(), 3e-3)
for it in range(30):
    s, q, y = episode()
    loss = F.cross_entropy(net(s, q, 5), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 10 == 9:
        net.eval()
        with torch.no_grad():
            s, q, y = episode()
            print(it, (net(s, q, 5).argmax(1) == y).float().mean().item())
        net.train()
