"""When tensors, batches and graphs go: weak references say so, in the order in which it happens."""
import weakref
import torch
from torch import nn
from training import batches, digest, small

class Batch:
    def __init__(self, x, y, number): self.x, self.y, self.number = x, y, number
    def __del__(self): print("batch", self.number, "gone")

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small()
    def forward(self, batch, extra=None):
        return self.inner(batch.x)

def watch(name, thing):
    weakref.finalize(thing, print, name, "gone").atexit = False

model = Own()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, (x, y) in enumerate(batches()):
    print("step", number)
    batch = Batch(x, y, number)
    watch("x", x), watch("y", y)
    del x, y
    optimizer.zero_grad()
    out = model(batch, extra=[batch])
    loss = nn.functional.cross_entropy(out, batch.y)
    watch("out", out), watch("loss", loss)
    del batch, out
    print("batch deleted")
    loss.backward()
    print("after backward")
    watch("gradient", model.inner[0].weight.grad)
    del loss
    optimizer.step()
    print("after step")
loader = torch.utils.data.DataLoader(list(range(8)), 4)
for item in loader:
    watch("item", item)
    del item
watch("loader", loader), watch("model", model), watch("optimizer", optimizer)
del loader
print("loader deleted")
del optimizer
print("optimizer deleted")
del model
print("end")
