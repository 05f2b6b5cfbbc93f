"""Contrastive learning on pairs of views that the dataset makes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(10)


class Pairs(Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def transform(self, image):
        image = image.flip(-1) if torch.rand(()) < 0.5 else image
        return image + 0.2 * torch.randn_like(image)

    def __getitem__(self, i):
        view = self.transform(self.images[i])
        return view, view  # expect: DATA13


def nt_xent(a, b, t=0.5):
    z = F.normalize(torch.cat([a, b]), dim=1)
    sim = z @ z.T / t
    sim.fill_diagonal_(-1e9)
    n = len(a)
    return F.cross_entropy(sim, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))


net = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
loader = DataLoader(Pairs(torch.rand(256, 3, 8, 8)), batch_size=64, shuffle=True, drop_last=True)
for epoch in range(4):
    for v1, v2 in loader:
        loss = nt_xent(net(v1), net(v2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
