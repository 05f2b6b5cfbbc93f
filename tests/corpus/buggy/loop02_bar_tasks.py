"""Two tasks on one trunk (angle of a bar, and whether it is thick); each task does its own backward."""

import math

import torch
from torch import nn

torch.manual_seed(22)


def bars(n, size=16):
    angle = math.pi * torch.rand(n, 1, 1)
    thick = torch.rand(n) < 0.5
    grid = torch.linspace(-1, 1, size)
    distance = (grid[:, None] * angle.cos() + grid[None, :] * angle.sin()).abs()
    width = torch.where(thick, 0.35, 0.15)[:, None, None]
    images = (distance < width).float() + 0.3 * torch.randn(n, size, size)
    heading = torch.cat([torch.cos(2 * angle), torch.sin(2 * angle)], dim=1).squeeze(-1)
    return images.unsqueeze(1), heading, thick.float()


class BarNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(256, 48),
            nn.SiLU(),
        )
        self.heading = nn.Linear(48, 2)
        self.thickness = nn.Linear(48, 1)


class TaskStep:
    """Forward and backward of one task."""

    def __init__(self, model, head, criterion):
        self.model, self.head, self.criterion = model, head, criterion

    def __call__(self, images, target):
        prediction = self.head(self.model.trunk(images))
        loss = self.criterion(prediction, target)
        self.model.zero_grad()  # expect: LOOP02
        loss.backward()
        return loss.item()


model = BarNet()
tasks = {
    "heading": TaskStep(model, model.heading, nn.MSELoss()),
    "thickness": TaskStep(model, model.thickness, nn.BCEWithLogitsLoss()),
}
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
images, heading, thick = bars(768)
test_images, test_heading, test_thick = bars(192)
targets = {"heading": heading, "thickness": thick.unsqueeze(1)}

for epoch in range(5):
    model.train()
    sums = dict.fromkeys(tasks, 0.0)
    for rows in torch.randperm(len(images)).split(48):
        for name, task in tasks.items():
            sums[name] += task(images[rows], targets[name][rows]) * len(rows)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        shared = model.trunk(test_images)
        test_error = nn.functional.mse_loss(model.heading(shared), test_heading).item()
        hits = ((model.thickness(shared).squeeze(1) > 0) == test_thick.bool()).float().mean().item()
    means = "  ".join(f"{name} {value / len(images):.3f}" for name, value in sums.items())
    print(f"epoch {epoch}: {means}  |  test heading {test_error:.3f}  thick {hits:.3f}")
