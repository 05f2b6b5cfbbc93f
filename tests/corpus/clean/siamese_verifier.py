"""Signature verification, made up: one encoder used for both sides of each pair, contrastive margin loss."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    """Half of the pairs come from one writer, half from two."""

    def __init__(self, writers, count, seed):
        generator = torch.Generator().manual_seed(seed)
        first = torch.randint(0, len(writers), (count,), generator=generator)
        other = (first + torch.randint(1, len(writers), (count,), generator=generator)) % len(writers)
        self.same = (torch.arange(count) % 2 == 0).float()
        second = torch.where(self.same.bool(), first, other)
        self.left = writers[first] + 0.5 * torch.randn(count, 1, 24, generator=generator)
        self.right = writers[second] + 0.5 * torch.randn(count, 1, 24, generator=generator)

    def __len__(self):
        return len(self.same)

    def __getitem__(self, i):
        return self.left[i], self.right[i], self.same[i]


class Encoder(nn.Module):
    def __init__(self, features=16):
        super().__init__()
        self.conv = nn.Conv1d(1, 12, 5, padding=2)
        self.fc = nn.Linear(12 * 12, features, bias=False)  # a bias would cancel in the distance

    def forward(self, x):
        x = F.avg_pool1d(F.gelu(self.conv(x)), 2)
        return self.fc(x.flatten(1))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def forward(self, left, right):
        return F.pairwise_distance(self.encoder(left), self.encoder(right))


def contrastive_loss(distance, same, margin=1.5):
    together = same * distance.pow(2)
    apart = (1 - same) * (margin - distance).clamp(min=0).pow(2)
    return (together + apart).mean()


def run(model, loader, optimizer=None):
    """One pass over the loader; trains when an optimizer is given. Returns mean loss and accuracy."""
    learning = optimizer is not None
    model.train(learning)
    loss_sum = hits = 0
    with torch.set_grad_enabled(learning):
        for left, right, same in loader:
            distance = model(left, right)
            loss = contrastive_loss(distance, same)
            if learning:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            loss_sum += loss.item() * len(same)
            hits += ((distance < 0.75).float() == same).sum().item()
    return loss_sum / len(loader.dataset), hits / len(loader.dataset)


def main():
    torch.manual_seed(127)
    writers = torch.randn(150, 1, 24)
    train_loader = DataLoader(Pairs(writers[:120], 768, seed=1), batch_size=64, shuffle=True)
    test_loader = DataLoader(Pairs(writers[120:], 256, seed=2), batch_size=64)
    model = Siamese()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(6):
        train_loss, train_accuracy = run(model, train_loader, optimizer)
        test_loss, test_accuracy = run(model, test_loader)
        print(
            f"epoch {epoch}: train {train_loss:.3f} ({train_accuracy:.2f}) "
            f"new writers {test_loss:.3f} ({test_accuracy:.2f})"
        )


if __name__ == "__main__":
    main()
