"""DDP with a static graph, gradients as views of buckets, and checkpointed activations."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(10, 10) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + checkpoint(lambda value, layer=layer: torch.relu(layer(value)), x, use_reentrant=False)
        return x


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Deep(), static_graph=True, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for _ in range(8):
    x = torch.randn(12, 10)
    optimizer.zero_grad()
    (model(x) - x.flip(1)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
