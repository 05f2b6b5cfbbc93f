"""FixMatch-like training: argmax of confident predictions as labels for the unlabelled part, masked by
confidence.
"""

import torch
import torch.nn.functional as F
from torch import nn

THRESHOLD = 0.9


def weak(x):
    return x + 0.1 * torch.randn_like(x)


def strong(x):
    return (x + 0.4 * torch.randn_like(x)) * (torch.rand_like(x) > 0.1)


class Semi:
    """Labelled and unlabelled batches side by side, drawn by index."""

    def __init__(self, labelled, targets, free):
        self.labelled, self.targets, self.free = labelled, targets, free

    def batches(self, size):
        for rows in torch.randperm(len(self.free)).split(size):
            pick = torch.randint(0, len(self.labelled), (size // 4,))
            yield self.labelled[pick], self.targets[pick], self.free[rows]


@torch.no_grad()
def guess(model, x):
    """Labels and a mask of the confident ones; made in eval mode, without dropout."""
    model.eval()
    confidence, label = model(x).softmax(dim=1).max(dim=1)
    model.train()
    return label, (confidence > THRESHOLD).float()


def train_step(model, optimizer, x, y, free):
    pseudo, mask = guess(model, weak(free))
    logits = model(torch.cat([weak(x), strong(free)]))
    supervised = F.cross_entropy(logits[: len(x)], y)
    each = F.cross_entropy(logits[len(x) :], pseudo, reduction="none")
    loss = supervised + (each * mask).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item(), mask.mean().item()


def main():
    torch.manual_seed(167)
    centres = 1.1 * torch.randn(4, 12)
    label = torch.randint(0, 4, (1500,))
    x = centres[label] + torch.randn(1500, 12)
    data = Semi(x[:60], label[:60], x[60:1020])
    x_test, y_test = x[1020:], label[1020:]
    model = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(6):
        model.train()
        for batch in data.batches(80):
            loss, used = train_step(model, optimizer, *batch)
        model.eval()
        with torch.no_grad():
            accuracy = (model(x_test).argmax(dim=1) == y_test).float().mean().item()
        print(f"epoch {epoch}: last loss {loss:.3f}, confident {used:.2f}, test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
