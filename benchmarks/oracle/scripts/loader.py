"""A dataset that changes while it is read: a cache, running statistics; two phases with an optimizer each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Cached(Dataset):
    def __init__(self, num):
        self.data, self.cache, self.mean = torch.randn(num, 4), {}, torch.zeros(4)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        self.mean = 0.99 * self.mean + 0.01 * self.data[index]
        if index not in self.cache:
            self.cache[index] = self.data[index].square()
        return self.cache[index]


def train(model, loader, extra, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        # plant 0-1 large: loader.dataset.mean
        # plant 0-1: loader.dataset.cache[min(loader.dataset.cache)] | loader.dataset.data
        # plant 0-1: extra.dataset.tensors[0] | extra.dataset.tensors[1] | model.weight


torch.manual_seed(0)
model = nn.Linear(4, 2)
extra = DataLoader(TensorDataset(torch.randn(6, 4), torch.randn(6, 2)), batch_size=2)
for lr in (0.1, 0.01):
    train(model, DataLoader(Cached(9), batch_size=3, shuffle=True), extra, lr)
# plant: model.bias | extra.dataset.tensors[0]
