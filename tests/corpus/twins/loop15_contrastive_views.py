"""Contrastive pre-training: two noisy views of one object lie close, views of others far apart."""

import torch
import torch.nn.functional as F
from torch import nn


class ViewSampler:
    def __init__(self, objects, size, generator):
        self.objects = torch.randn(objects, size, generator=generator)
        self.generator = generator

    def view(self, rows):
        x = self.objects[rows]
        noise = torch.randn(x.shape, generator=self.generator)
        keep = torch.rand(x.shape, generator=self.generator) > 0.2
        return (x + 0.4 * noise) * keep

    def batches(self, batch_size):
        order = torch.randperm(len(self.objects), generator=self.generator)
        for rows in order.split(batch_size):
            yield self.view(rows), self.view(rows)


class Projector(nn.Module):
    def __init__(self, size, hidden=128, out=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, out))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def info_nce(a, b, temperature=0.2):
    logits = a @ b.T / temperature
    target = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target))


def train_epoch(model, optimizer, sampler, batch_size=64):
    model.train()
    total_loss, batches = 0.0, 0
    for first, second in sampler.batches(batch_size):
        loss = info_nce(model(first), model(second))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        batches += 1
    return total_loss / batches


@torch.no_grad()
def retrieval(model, sampler):
    """How often the nearest other view belongs to the same object."""
    model.eval()
    rows = torch.arange(len(sampler.objects))
    a, b = model(sampler.view(rows)), model(sampler.view(rows))
    return ((a @ b.T).argmax(dim=1) == rows).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(4)
    generator = torch.Generator().manual_seed(4)
    sampler = ViewSampler(objects=640, size=48, generator=generator)
    fresh = ViewSampler(objects=256, size=48, generator=generator)
    model = Projector(48)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(6):
        mean_loss = train_epoch(model, optimizer, sampler)
        print(f"epoch {epoch}: loss {mean_loss:.3f}  retrieval {retrieval(model, fresh):.3f}")
