"""Autocast and a scaler of gradients, accumulated steps, clipping by value and by norm."""
import warnings
import torch
from torch import nn
from training import batches, digest, small
warnings.simplefilter("ignore")

model = small()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
for number, (x, y) in enumerate(batches(12)):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y) / 2
    scaler.scale(loss * (float("inf") if number == 4 else 1)).backward()
    if number % 2:
        scaler.unscale_(optimizer)
        print(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item(), scaler.get_scale())
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=number % 4 == 1)
print(scaler.state_dict(), digest(model))
