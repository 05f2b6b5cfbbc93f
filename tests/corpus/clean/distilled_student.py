"""Distil a wide teacher into a small student: KL between softened distributions plus the ordinary loss."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

TEMPERATURE = 3.0
ALPHA = 0.7


def mlp(hidden, dropout):
    return nn.Sequential(nn.Linear(64, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, 10))


def distillation_loss(student_logits, teacher_logits, labels):
    soft = F.kl_div(
        F.log_softmax(student_logits / TEMPERATURE, dim=1),
        F.softmax(teacher_logits / TEMPERATURE, dim=1),
        reduction="batchmean",
    )
    hard = F.cross_entropy(student_logits, labels)
    return ALPHA * TEMPERATURE**2 * soft + (1 - ALPHA) * hard


def fit(model, loader, epochs, lr, teacher=None):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for x, y in loader:
            logits = model(x)
            if teacher is None:
                loss = F.cross_entropy(logits, y)
            else:
                with torch.no_grad():
                    teacher_logits = teacher(x)
                loss = distillation_loss(logits, teacher_logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        print(f"  epoch {epoch}: {total / len(loader.dataset):.3f}")


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    return sum((model(x).argmax(1) == y).sum().item() for x, y in loader) / len(loader.dataset)


def main():
    torch.manual_seed(12)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 8 - 1, torch.tensor(digits.target))
    train_set, test_set = random_split(data, [1347, 450])
    train_loader = DataLoader(train_set, batch_size=96, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=225)

    print("teacher")
    teacher = mlp(256, dropout=0.3)
    fit(teacher, train_loader, epochs=4, lr=5e-3)
    print(f"  accuracy {accuracy(teacher, test_loader):.3f}")

    print("student")
    teacher.eval().requires_grad_(False)
    student = mlp(24, dropout=0.0)
    fit(student, train_loader, epochs=5, lr=1e-2, teacher=teacher)
    print(f"  accuracy {accuracy(student, test_loader):.3f}")


if __name__ == "__main__":
    main()
