"""Mean teacher on two spirals: few labels, many unlabelled points, a frozen teacher that follows by EMA."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def spirals(count, generator):
    label = torch.randint(0, 2, (count,), generator=generator)
    radius = 0.2 + 0.8 * torch.rand(count, generator=generator)
    angle = 4 * radius + math.pi * label
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return 1.5 * points + 0.03 * torch.randn(count, 2, generator=generator), label


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, 64, bias=False),
            nn.BatchNorm1d(64),
            nn.SiLU(),
            nn.Linear(64, 64),
            nn.SiLU(),
            nn.Linear(64, 2),
        )

    def forward(self, x):
        return self.layers(x)


@torch.no_grad()
def follow(teacher, student, decay):
    for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
        t.lerp_(s, 1 - decay)
    for t, s in zip(teacher.buffers(), student.buffers(), strict=True):
        t.copy_(s)


@torch.no_grad()
def accuracy(model, x, y):
    was_training = model.training
    model.eval()
    result = (model(x).argmax(1) == y).float().mean().item()
    model.train(was_training)
    return result


def main():
    torch.manual_seed(17)
    generator = torch.Generator().manual_seed(17)
    x_labelled, y_labelled = spirals(96, generator)
    x_free, _ = spirals(960, generator)
    x_test, y_test = spirals(400, generator)

    student = Classifier()
    teacher = copy.deepcopy(student).requires_grad_(False).eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
    free_loader = DataLoader(TensorDataset(x_free), batch_size=96, shuffle=True, drop_last=True)
    step = 0
    for epoch in range(12):
        student.train()
        for (free,) in free_loader:
            weight = min(1.0, step / 60)
            with torch.no_grad():
                goal = teacher(free + 0.02 * torch.randn_like(free)).softmax(dim=1)
            logits = student(torch.cat([x_labelled, free + 0.02 * torch.randn_like(free)]))
            supervised = F.cross_entropy(logits[: len(x_labelled)], y_labelled)
            consistency = F.mse_loss(logits[len(x_labelled) :].softmax(dim=1), goal)
            loss = supervised + weight * consistency
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            follow(teacher, student, decay=min(0.95, 1 - 1 / (step + 1)))
            step += 1
        if epoch % 3 == 2:
            print(
                f"epoch {epoch}: loss {loss.item():.4f} student {accuracy(student, x_test, y_test):.3f} "
                f"teacher {accuracy(teacher, x_test, y_test):.3f}"
            )


if __name__ == "__main__":
    main()
