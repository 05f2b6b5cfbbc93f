"""Each rank reads its own files, which have different lengths. FSDP2."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

LENGTHS = {"part-0": 24, "part-1": 16, "part-2": 24, "part-3": 8}


def read(name):
    generator = torch.Generator().manual_seed(len(name) + LENGTHS[name])
    x = torch.randn(LENGTHS[name], 8, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).float())


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    parts = [read(name) for name in sorted(LENGTHS)[rank::world]]
    loader = DataLoader(ConcatDataset(parts), batch_size=8, shuffle=True)  # expect: DIST05
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for a, b in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(a).squeeze(1), b)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
