"""Distils a teacher into a smaller student; large batches are cut into chunks that fit in memory."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class DistillConfig:
    batch_size: int = 128
    chunks: int = 4
    temperature: float = 2.0
    alpha: float = 0.7
    teacher_steps: int = 80
    epochs: int = 4
    lr: float = 0.05


def mlp(width, depth, features=20, classes=5):
    layers, size = [], features
    for _ in range(depth):
        layers += [nn.Linear(size, width), nn.GELU()]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, classes))


def clusters(n, generator, features=20, classes=5):
    centres = torch.randn(classes, 2, features, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(classes, (n,), generator=generator)
    half = torch.randint(2, (n,), generator=generator)
    return 0.9 * centres[labels, half] + torch.randn(n, features, generator=generator), labels


class Distiller:
    def __init__(self, teacher, student, config):
        self.teacher = teacher.eval().requires_grad_(False)
        self.student = student
        self.config = config
        self.optimizer = torch.optim.SGD(student.parameters(), lr=config.lr, momentum=0.9, nesterov=True)

    def compute_loss(self, x, y):
        t = self.config.temperature
        logits = self.student(x)
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / t, dim=1)
        kd = F.kl_div(F.log_softmax(logits / t, dim=1), soft, reduction="batchmean") * t * t
        return self.config.alpha * kd + (1 - self.config.alpha) * F.cross_entropy(logits, y)

    def training_step(self, x, y):
        self.student.train()
        pieces = list(zip(x.chunk(self.config.chunks), y.chunk(self.config.chunks), strict=True))
        reported = 0.0
        for piece_x, piece_y in pieces:
            loss = self.compute_loss(piece_x, piece_y)
            loss.backward()  # expect: LOOP03
            reported += loss.item() / len(pieces)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return reported


def fit_teacher(x, y, steps):
    teacher = mlp(96, 2)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        optimizer.zero_grad()
        F.cross_entropy(teacher(x[rows]), y[rows]).backward()
        optimizer.step()
    return teacher


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return (model(x).argmax(dim=1) == y).float().mean().item()


def main():
    torch.manual_seed(38)
    config = DistillConfig()
    generator = torch.Generator().manual_seed(38)
    x, y = clusters(2048, generator)
    test_x, test_y = clusters(512, generator)
    distiller = Distiller(fit_teacher(x, y, config.teacher_steps), mlp(24, 1), config)
    print(f"teacher accuracy {accuracy(distiller.teacher, test_x, test_y):.3f}")
    for epoch in range(config.epochs):
        losses = [
            distiller.training_step(x[r], y[r]) for r in torch.randperm(len(x)).split(config.batch_size)
        ]
        score = accuracy(distiller.student, test_x, test_y)
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}  student accuracy {score:.3f}")


if __name__ == "__main__":
    main()
