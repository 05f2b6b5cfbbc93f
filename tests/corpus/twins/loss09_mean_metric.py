"""Mean of unequal batch means, kept by a torchmetrics aggregator."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric


def table(n):
    x = torch.randn(n, 5)
    return TensorDataset(x, x.pow(2).sum(1, keepdim=True))


def train_epoch(model, loader, optimizer, mean):
    model.train()
    mean.reset()
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean.update(loss.detach(), weight=len(x))
    return mean.compute().item()


@torch.no_grad()
def valid_epoch(model, loader, mean):
    model.eval()
    mean.reset()
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        mean.update(loss, weight=len(x))
    return mean.compute().item()


torch.manual_seed(2)
train_loader = DataLoader(table(256), batch_size=32, shuffle=True)
valid_loader = DataLoader(table(67), batch_size=32)
model = nn.Sequential(nn.Linear(5, 32), nn.SiLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    print(epoch, train_epoch(model, train_loader, optimizer, MeanMetric()), valid_epoch(model, valid_loader, MeanMetric()))
