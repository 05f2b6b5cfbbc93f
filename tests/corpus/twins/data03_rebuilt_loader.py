"""The loader with its sampler is built anew for each epoch."""
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_loader(data, epoch):
    sampler = DistributedSampler(data, num_replicas=2, rank=1, shuffle=True, seed=0)
    sampler.set_epoch(epoch)
    return DataLoader(data, batch_size=16, sampler=sampler)


def run_epoch(model, optimizer, loader):
    total = 0.0
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    return total / len(loader.sampler)


torch.manual_seed(0)
x = torch.randn(256, 5)
data = TensorDataset(x, x[:, :1].exp())
model = nn.Sequential(nn.Linear(5, 16), nn.Softplus(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(4):
    print(epoch, run_epoch(model, optimizer, make_loader(data, epoch)))
