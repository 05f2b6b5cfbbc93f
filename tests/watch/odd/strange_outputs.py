"""Models that return generators, coroutines, functions, nothing, or refuse; and modules that are not set up."""
import asyncio, collections
import torch
from torch import nn
from training import batches, digest

Pair = collections.namedtuple("Pair", "out extra")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
    def forward(self, x=None, *, how="pair"):
        return {"pair": lambda: Pair(self.inner(x), {"x": [x]}), "generator": lambda: (self.inner(row) for row in x), "function": lambda: self.inner, "none": lambda: None,
                "coroutine": lambda: self.later(x), "text": lambda: "text"}[how]()
    async def later(self, x):
        await asyncio.sleep(0)
        return self.inner(x)

class Empty(nn.Module):
    def __init__(self): pass
    def forward(self): return 1

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, (x, y) in enumerate(batches()):
    optimizer.zero_grad()
    out = [lambda: model(x).out, lambda: torch.stack(list(model(x=x, how="generator"))), lambda: asyncio.run(model(x, how="coroutine"))][number % 3]()
    nn.functional.cross_entropy(out, y).backward()
    optimizer.step()
    print(model(how="none"), model(how="text"), model(how="function") is model.inner)
try:
    print(Empty()())
except AttributeError as error:
    print(error)
print(digest(model))
