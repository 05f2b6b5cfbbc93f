"""Optimizers whose step takes something else than a closure, and gives something back."""
import torch
from torch import nn
from training import batches, digest, small

class Whole(torch.optim.SGD):
    def step(self, loss, *, scale=1.0):
        self.zero_grad()
        (loss * scale).backward()
        super().step()
        return {"loss": loss.detach()}
    def __repr__(self): return "whole"

class Pair:
    def __init__(self, *inner): self.inner = inner
    def zero_grad(self): return [item.zero_grad() for item in self.inner]
    def step(self): return [item.step() for item in self.inner]

model = small()
optimizer = Whole(model.parameters(), lr=0.1)
for x, y in batches():
    print(optimizer.step(nn.functional.cross_entropy(model(x), y), scale=0.5)["loss"].item())
pair = Pair(torch.optim.SGD(model[:2].parameters(), lr=0.1), torch.optim.Adam(model[3:].parameters()))
for x, y in batches():
    pair.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    print(pair.step())
print(optimizer, digest(model))
