"""Trains, then counts the tensors and graphs that live, and those of a model that is gone."""

import gc
import sys
import weakref

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.data import DataLoader, TensorDataset


class Saved:
    def __init__(self, tensor):
        self.tensor = tensor
        saved.append(weakref.ref(self))


def num_tensors():
    gc.collect()
    return sum(type(item) in (torch.Tensor, nn.Parameter) for item in gc.get_objects())


def num_alive(references):
    gc.collect()
    return sum(item() is not None for item in references)


def train(model, optimizer, num_steps):
    num = 0
    while num < num_steps:
        for x, y in loader:
            with saved_tensors_hooks(Saved, lambda item: item.tensor):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            num += 1
            if num == num_steps:
                break
    return float(loss)


torch.manual_seed(0)
saved = []
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.arange(64) % 3), batch_size=8, shuffle=True)
before = num_tensors()
print("loss", train(model, optimizer, int(sys.argv[1])))
print("tensors", num_tensors() - before, "graphs", num_alive(saved))
weights = [weakref.ref(item) for item in model.parameters()]
gradients = [weakref.ref(item.grad) for item in model.parameters()]
modules = [weakref.ref(item) for item in model.modules()]
optimizers = [weakref.ref(optimizer)]
del model, optimizer
print("alive", *map(num_alive, (weights, gradients, modules, optimizers)))
print("left", num_tensors() - before)
