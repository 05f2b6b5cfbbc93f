import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    store = "file://" + os.path.join(folder, "store")
    dist.init_process_group("gloo", init_method=store, world_size=1, rank=0)
    model = nn.Linear(4, 1)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        x = torch.randn(8, 4)
        loss = (parallel(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            parallel.module(x)
    dist.destroy_process_group()
