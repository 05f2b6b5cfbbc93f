"""When the tensors of a plain loop go: inputs that are deleted before the backward pass."""
import weakref
import torch
from torch import nn
from training import batches, digest, small

def watch(name, thing):
    weakref.finalize(thing, print, name, "gone").atexit = False

model = small()
optimizer = torch.optim.Adam(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
for number, (x, y) in enumerate(batches()):
    print("step", number)
    watch("x", x), watch("y", y)
    out = model(input=x)
    del x
    print("x deleted")
    loss = nn.functional.cross_entropy(out, y)
    watch("out", out), watch("loss", loss)
    del y, out
    print("y deleted")
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(loss.detach().item())
    loss = None
    print("loss deleted")
    optimizer.step()
    scheduler.step()
watch("scheduler", scheduler)
del scheduler
print("scheduler deleted")
