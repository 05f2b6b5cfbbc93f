"""Capsule-like routing; softmax without dim."""
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Router(nn.Module):
    def __init__(self, d=8, heads=4, classes=3):
        super().__init__()
        self.key = nn.Linear(d, heads)
        self.value = nn.Linear(d, 16)
        self.out = nn.Linear(heads * 16, classes)

    def forward(self, x):
        w = F.softmax(self.key(x))  # expect: LOSS04
        v = self.value(x)
        pooled = torch.einsum("bth,btd->bhd", w, v)
        return self.out(pooled.flatten(1))


def main():
    torch.manual_seed(6)
    x = torch.randn(320, 9, 8)
    y = x[:, :, 0].sum(1).gt(0).long() + x[:, :, 1].sum(1).gt(0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    net = Router()
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    for epoch in range(2):
        net.train()
        for xb, yb in loader:
            loss = F.cross_entropy(net(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item())


main()
