"""Contrastive learning (NT-Xent): samples of a batch meet in the loss on purpose, never inside the
encoder.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TEMPERATURE = 0.5


def view(x):
    """A noisy, randomly masked view of each sample of the batch."""
    return (x + 0.3 * torch.randn_like(x)) * (torch.rand_like(x) > 0.15)


class Encoder(nn.Module):
    def __init__(self, inputs=32, width=64, features=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, features))
        self.projector = nn.Sequential(nn.GELU(), nn.Linear(features, features))

    def forward(self, x):
        return F.normalize(self.projector(self.body(x)), dim=1)


def nt_xent(a, b):
    """Each row of `a` must find its partner in `b` among all other rows, and the reverse."""
    z = torch.cat([a, b])
    similarity = z @ z.T / TEMPERATURE
    itself = torch.eye(len(z), dtype=torch.bool)
    similarity = similarity.masked_fill(itself, float("-inf"))
    partner = torch.arange(len(z)).roll(len(a))
    return F.cross_entropy(similarity, partner)


def nearest_neighbour_accuracy(encoder, bank, bank_labels, queries, query_labels):
    encoder.eval()
    with torch.no_grad():
        bank_features = F.normalize(encoder.body(bank), dim=1)
        query_features = F.normalize(encoder.body(queries), dim=1)
        nearest = (query_features @ bank_features.T).argmax(dim=1)
    return (bank_labels[nearest] == query_labels).float().mean().item()


def main():
    torch.manual_seed(89)
    centres = torch.randn(6, 32)
    labels = torch.randint(0, 6, (900,))
    samples = centres[labels] + 0.9 * torch.randn(900, 32)
    train, test = slice(0, 640), slice(640, None)
    loader = DataLoader(TensorDataset(samples[train]), batch_size=64, shuffle=True, drop_last=True)

    encoder = Encoder()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)
    for epoch in range(5):
        encoder.train()
        losses = []
        for (x,) in loader:
            loss = nt_xent(encoder(view(x)), encoder(view(x)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        accuracy = nearest_neighbour_accuracy(
            encoder, samples[train], labels[train], samples[test], labels[test]
        )
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f} neighbour accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
