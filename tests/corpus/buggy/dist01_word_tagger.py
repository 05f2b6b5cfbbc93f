"""Data-parallel training of a sequence tagger; one process here, many on the cluster."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORDS, TAGS, LENGTH = 200, 6, 16


class Tagger(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.lstm = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(width, TAGS)

    def forward(self, words):
        hidden, _ = self.lstm(self.embed(words))
        return self.out(hidden)

    def loss(self, logits, tags):
        return nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())


def sentences(count, seed):
    """The tag of a word depends on the word and on its left neighbour."""
    words = torch.randint(0, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    left = torch.cat([torch.zeros(count, 1, dtype=torch.long), words[:, :-1]], dim=1)
    return TensorDataset(words, (words % 3) + 3 * (left % 2))


def train(ddp, loader, sampler, epochs):
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        ddp.train()
        for words, tags in loader:
            optimizer.zero_grad()
            logits = ddp.module(words)  # expect: DIST01
            loss = ddp.module.loss(logits, tags)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    words, tags = data.tensors
    return (model(words).argmax(dim=-1) == tags).float().mean().item()


def main():
    torch.manual_seed(0)
    data = sentences(320, seed=1)
    sampler = DistributedSampler(data, shuffle=True, seed=0)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    ddp = DistributedDataParallel(Tagger())
    train(ddp, loader, sampler, epochs=4)
    if dist.get_rank() == 0:
        print(f"tagging accuracy {evaluate(ddp.module, sentences(64, seed=2)):.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        store = "file://" + os.path.join(folder, "rendezvous")
        dist.init_process_group("gloo", init_method=store, world_size=1, rank=0)
        try:
            main()
        finally:
            dist.destroy_process_group()
