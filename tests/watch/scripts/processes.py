"""Two processes and DDP, started by torchrun."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")  # -> GroupJoined
torch.manual_seed(0)  # -> GeneratorSeeded
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(24, 4), torch.randint(0, 2, (24,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)  # -> EpochSet
    for x, y in loader:  # -> BatchFetched EpochBegan
        optimizer.zero_grad()  # -> GradientsZeroed
        F.cross_entropy(model(x), y).backward()  # -> ForwardPass BackwardPass
        optimizer.step()  # -> OptimizerStep
if dist.get_rank() == 0:
    print("digest", [float(value.sum()).hex() for value in model.state_dict().values()])
dist.destroy_process_group()
