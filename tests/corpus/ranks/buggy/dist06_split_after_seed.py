"""Each rank has its own seed before the data is split."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split


def main():
    dist.init_process_group("gloo")
    data_generator = torch.Generator().manual_seed(5)
    x = torch.randn(80, 6, generator=data_generator)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    torch.manual_seed(2024 + dist.get_rank())
    train, valid = random_split(data, [0.75, 0.25])  # expect: DIST06
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=6, sampler=sampler)
    held_out = DataLoader(valid, batch_size=10)
    model = DDP(nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
        model.eval()
        right = torch.zeros(2)
        with torch.no_grad():
            for a, b in held_out:
                right += torch.tensor([(model(a).argmax(1) == b).sum(), len(b)])
        dist.all_reduce(right)
        if dist.get_rank() == 0:
            print(epoch, (right[0] / right[1]).item())
    dist.destroy_process_group()


main()
