"""The script replaces parts of torch before it trains: what is replaced stays so."""
import torch
from torch import nn

def call(self, *args, **kwargs):
    counts["call"] += 1
    return self._call_impl(*args, **kwargs)

def step(self, closure=None):
    counts["step"] += 1
    with torch.no_grad():
        for group in self.param_groups:
            for item in group["params"]:
                item -= group["lr"] * item.grad

def backward(self, *args, **kwargs):
    counts["backward"] += 1
    return torch.autograd.backward((self,), *args, **kwargs)

counts = dict.fromkeys(("call", "step", "backward"), 0)
nn.Module.__call__ = call
torch.optim.SGD.step = step
torch.Tensor.backward = backward
from training import digest, small, train
model = small()
train(model)
print(counts, nn.Module.__call__ is call, torch.Tensor.backward is backward, digest(model))
