"""Early stopping on each rank's own validation loss."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = DDP(nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
truth = torch.randn(6, 1)
torch.manual_seed(20 + rank)
validation = torch.randn(64, 6)
patience = 2 + 3 * rank  # as if this rank's validation set were harder
best, bad = float("inf"), 0
for epoch in range(60):
    for _ in range(4):
        x = torch.randn(8, 6)
        loss = nn.functional.mse_loss(model(x), x @ truth + 0.3 * torch.randn(8, 1))  # expect: DIST03
        optimizer.zero_grad()
        loss.backward()  # expect: DIST03
        optimizer.step()
    with torch.no_grad():
        score = nn.functional.mse_loss(model.module(validation), validation @ truth).item()
    bad = bad + 1 if score > best - 1e-3 else 0
    best = min(best, score)
    if bad >= patience:
        break
dist.barrier()  # expect: DIST03
dist.destroy_process_group()
