"""How many references there are to what a step uses, before and after each call."""
import sys
import torch
from torch import nn
from training import batches, digest, small

def count(where):
    print(where, *(sys.getrefcount(item) for item in (model, optimizer, x, y, model[0].weight, model[0].weight.grad) if item is not None))

model = small()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches():
    count("begin")
    optimizer.zero_grad()
    out = model(x)
    count("forward")
    loss = nn.functional.cross_entropy(out, y)
    print(sys.getrefcount(out), sys.getrefcount(loss), sys.getrefcount(loss.grad_fn))
    loss.backward()
    count("backward")
    optimizer.step()
    count("step")
    print(sys.getrefcount(out), sys.getrefcount(loss))
