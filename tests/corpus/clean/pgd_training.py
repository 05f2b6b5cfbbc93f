"""Adversarial training by PGD: the attack asks for input gradients only and runs with the model in
eval mode.
"""

from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@contextmanager
def evaluating(model):
    """Keep BatchNorm's statistics clean of attacked batches, then restore the mode."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


class PGD:
    def __init__(self, radius=0.3, step=0.12, steps=3):
        self.radius, self.step, self.steps = radius, step, steps

    def __call__(self, model, x, y):
        delta = torch.empty_like(x).uniform_(-self.radius, self.radius)
        with evaluating(model):
            for _ in range(self.steps):
                delta.requires_grad_(True)
                loss = F.cross_entropy(model(x + delta), y)
                (gradient,) = torch.autograd.grad(loss, delta)
                with torch.no_grad():
                    delta = (delta + self.step * gradient.sign()).clamp(-self.radius, self.radius)
        return x + delta.detach()


def make_set(count, seed):
    """Two classes of short spectra: one peak or two."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (count,), generator=generator)
    axis = torch.linspace(-1, 1, 32)
    centre = 0.8 * torch.rand(count, 2, 1, generator=generator) - torch.tensor([[0.9], [-0.1]])
    peaks = torch.exp(-((axis - centre) ** 2) / 0.01)
    spectrum = peaks[:, 0] + label[:, None] * peaks[:, 1]
    noise = 0.1 * torch.randn(count, 32, generator=generator)
    return TensorDataset(2 * (spectrum + noise).unsqueeze(1), label)


def make_model():
    return nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2, bias=False),
        nn.BatchNorm1d(16),
        nn.SiLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(16, 16, 5, padding=2),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(16 * 16, 2),
    )


def evaluate(model, loader, attack=None):
    model.eval()
    hits = 0
    for x, y in loader:
        shown = x if attack is None else attack(model, x, y)
        with torch.no_grad():
            hits += (model(shown).argmax(dim=1) == y).sum().item()
    return hits / len(loader.dataset)


def main():
    torch.manual_seed(31)
    train_loader = DataLoader(make_set(640, seed=1), batch_size=64, shuffle=True)
    test_loader = DataLoader(make_set(256, seed=2), batch_size=128)
    model, attack = make_model(), PGD()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        model.train()
        total = 0.0
        for x, y in train_loader:
            attacked = attack(model, x, y)
            loss = F.cross_entropy(model(attacked), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        print(f"epoch {epoch}: adversarial loss {total / len(train_loader.dataset):.3f}")
    print(f"clean {evaluate(model, test_loader):.3f} attacked {evaluate(model, test_loader, attack):.3f}")


if __name__ == "__main__":
    main()
