"""Estimates the motion between two views of a point cloud (self-supervised: the warped view must fit)."""

import torch
from torch import nn

torch.manual_seed(65)


class PoseNet(nn.Module):
    """Angle and shift of the motion, from the ordered points of both views."""

    def __init__(self, points, hidden=96):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4 * points, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 3),
        )

    def forward(self, first, second):
        return self.net(torch.cat([first, second], dim=1).flatten(1))


def warp(points, pose):
    angle, shift = pose[:, :1], pose[:, 1:]
    x, y = points[..., 0], points[..., 1]
    turned = torch.stack([angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y], dim=2)
    return turned + shift[:, None]


def pairs(n, points=10):
    first = torch.randn(n, points, 2)
    pose = torch.cat([torch.rand(n, 1) - 0.5, torch.rand(n, 2) * 2 - 1], dim=1)
    second = warp(first, pose) + 0.02 * torch.randn(n, points, 2)
    return first, second, pose


def photometric(model, first, second):
    return nn.functional.smooth_l1_loss(warp(first, model(first, second)), second, beta=0.1)


train_first, train_second, _ = pairs(1024)
test_first, test_second, test_pose = pairs(256)
model = PoseNet(points=10)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
EPOCHS, BATCH = 8, 64
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=5e-3, epochs=EPOCHS, steps_per_epoch=len(train_first) // BATCH
)

for epoch in range(EPOCHS):
    model.train()
    total = 0.0
    for rows in torch.randperm(len(train_first)).split(BATCH):
        loss = photometric(model, train_first[rows], train_second[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item() * len(rows)
    model.eval()
    with torch.no_grad():
        error = (model(test_first, test_second) - test_pose).abs().mean().item()
    print(f"epoch {epoch}: loss {total / len(train_first):.4f}  pose error {error:.4f}")
