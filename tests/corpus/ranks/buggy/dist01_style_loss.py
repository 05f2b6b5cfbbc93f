"""An encoder with two outputs; the training step reaches into the wrapper for them."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 24), nn.GELU())
        self.content = nn.Linear(24, 6)
        self.style = nn.Linear(24, 2)

    def forward(self, x):
        hidden = self.body(x)
        return self.content(hidden), self.style(hidden)


def training_step(model, batch):
    x, content, style = batch
    predicted, tone = model.module(x)  # expect: DIST01
    return F.mse_loss(predicted, content) + 0.3 * F.cross_entropy(tone, style)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DDP(Encoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(12):
        x = torch.randn(16, 12, generator=generator)
        batch = (x, x[:, :6] * 0.5, (x.mean(1) > 0).long())
        optimizer.zero_grad(set_to_none=True)
        training_step(model, batch).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
