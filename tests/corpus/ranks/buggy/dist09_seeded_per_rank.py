# processes: 3
"""A seed per rank, set before the model is built and sharded."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 9)
        self.gru = nn.GRU(9, 12, batch_first=True)
        self.out = nn.Linear(12, 30)

    def forward(self, tokens):
        return self.out(self.gru(self.embed(tokens))[0])


def setup():
    dist.init_process_group("gloo")
    torch.manual_seed(17 + dist.get_rank())
    return init_device_mesh("cpu", (dist.get_world_size(),))


if __name__ == "__main__":
    mesh = setup()
    model = fully_shard(Tower(), mesh=mesh)  # expect: DIST09
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(6):
        tokens = torch.randint(0, 30, (6, 11))
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
