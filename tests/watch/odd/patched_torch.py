"""The script replaces parts of torch by its own, uses them, and puts the old ones back."""
import torch
from torch import nn
from training import digest, small, train

calls = []

def replace(owner, name):
    old = getattr(owner, name)
    def new(*args, **kwargs):
        calls.append(name)
        return old(*args, **kwargs)
    setattr(owner, name, new)
    return owner, name, old

places = [
    replace(nn.Module, "__call__"), replace(nn.Module, "train"), replace(nn.Module, "zero_grad"), replace(torch.Tensor, "backward"),
    replace(torch.autograd, "backward"), replace(torch.optim.Optimizer, "zero_grad"), replace(torch.optim.SGD, "step"),
    replace(nn.functional, "cross_entropy"), replace(nn.Linear, "forward"), replace(torch, "manual_seed"), replace(nn.utils, "clip_grad_norm_"),
]
model = small()
train(model)
print(len(calls), calls)
for owner, name, old in reversed(places):
    setattr(owner, name, old)
train(model)
print(len(calls), all(getattr(owner, name) is old for owner, name, old in places), digest(model))
