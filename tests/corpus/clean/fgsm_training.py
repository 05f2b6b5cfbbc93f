"""Adversarial training by FGSM on digits: a backward for the input's gradient, model gradients cleared
between.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

EPSILON = 0.15


def load():
    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        digits.data / 8 - 1, digits.target, test_size=0.25, random_state=0, stratify=digits.target
    )
    as_input = lambda a: torch.tensor(a, dtype=torch.float32)  # noqa: E731
    return as_input(x_train), torch.tensor(y_train), as_input(x_test), torch.tensor(y_test)


def fgsm(model, x, y):
    """One signed gradient step on the input; leaves the model without gradients."""
    x = x.clone().requires_grad_(True)
    F.cross_entropy(model(x), y).backward()
    attacked = (x + EPSILON * x.grad.sign()).clamp(-1, 1).detach()
    model.zero_grad()
    return attacked


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(dim=1) == y).float().mean().item()


def train(model, x_train, y_train, epochs=5, batch=64):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        model.train()
        losses = []
        for rows in torch.randperm(len(x_train)).split(batch):
            x, y = x_train[rows], y_train[rows]
            attacked = fgsm(model, x, y)
            optimizer.zero_grad()
            clean_loss = F.cross_entropy(model(x), y)
            attacked_loss = F.cross_entropy(model(attacked), y)
            loss = 0.5 * (clean_loss + attacked_loss)
            loss.backward()
            optimizer.step()
            losses.append((loss.item(), len(rows)))
        mean = sum(value * n for value, n in losses) / len(x_train)
        print(f"epoch {epoch}: loss {mean:.3f}")


def main():
    torch.manual_seed(0)
    x_train, y_train, x_test, y_test = load()
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 10))
    train(model, x_train, y_train)
    model.eval()
    attacked = fgsm(model, x_test, y_test)
    print(f"clean {accuracy(model, x_test, y_test):.3f} attacked {accuracy(model, attacked, y_test):.3f}")


if __name__ == "__main__":
    main()
