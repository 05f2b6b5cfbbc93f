"""The first rank writes the best model; all ranks read it for the test without waiting."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "best.pt")
    else:
        for _ in range(200_000_00):  # the other ranks have something else to do first
            pass
    model.module.load_state_dict(torch.load("best.pt", weights_only=True))  # expect: DIST18
    model.eval()
    with torch.no_grad():
        print((model(x).argmax(1) == data.tensors[1]).float().mean().item())
    dist.destroy_process_group()


main()
