"""FSDP2 over images; the sampler is told that there is one replica."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
    )


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    labels = torch.randint(0, 4, (64,))
    images = torch.randn(64, 1, 8, 8) + labels[:, None, None, None] / 4
    data = TensorDataset(images, labels)
    sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler)  # expect: DIST04
    model = network()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for a, b in loader:
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


main()
