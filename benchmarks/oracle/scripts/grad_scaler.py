"""Mixed precision with a scaler of gradients; running ranges of the activations are kept."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
ranges = torch.zeros(2, 8, dtype=torch.bfloat16)
halves = [item.detach().half() for item in model.parameters()]
for step in range(4):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model[1](model[0](torch.randn(4, 8)))
        loss = model[2](hidden).float().square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    ranges[0] = torch.maximum(ranges[0], hidden.detach().amax(0).to(ranges.dtype))
    for half, item in zip(halves, model.parameters(), strict=True):
        half.copy_(item.detach())
    # plant 0-3: ranges | halves[0] | halves[3] | model[2].weight
    # plant 0-3 large: optimizer.state[model[0].weight]["exp_avg_sq"]
