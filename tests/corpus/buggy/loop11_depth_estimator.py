"""Two-view point triangulation learnt by a network; distance loss over matched points only."""

import torch
from torch import nn

torch.manual_seed(11)


def make_scene(n):
    points = torch.rand(n, 3) * 2 - 1
    depth = points[:, 2:] + 3.0
    left = (points[:, :2] - torch.tensor([0.3, 0.0])) / depth
    right = (points[:, :2] + torch.tensor([0.3, 0.0])) / depth
    matched = torch.rand(n) < 0.8
    right = torch.where(matched[:, None], right, torch.zeros_like(right))
    return torch.cat([left, right, matched[:, None].float()], dim=1), points, matched


class Triangulator(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(5, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 3)
        )

    def forward(self, views):
        estimate = self.net(views)
        # points without a match stay at the origin, whatever the network says
        return estimate * views[:, 4:]


def distance_loss(estimate, points, matched):
    squared = (estimate - points * matched[:, None]).square().sum(dim=1)
    distance = torch.where(matched, squared.sqrt(), torch.zeros_like(squared))  # expect: LOOP11
    return distance.sum() / matched.sum()


train_views, train_points, train_matched = make_scene(2048)
test_views, test_points, test_matched = make_scene(512)

model = Triangulator()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
batch_size = 128

for epoch in range(6):
    model.train()
    order = torch.randperm(len(train_views))
    total = 0.0
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        optimizer.zero_grad()
        loss = distance_loss(model(train_views[rows]), train_points[rows], train_matched[rows])
        loss.backward()
        optimizer.step()
        total += loss.item() * batch_size
    model.eval()
    with torch.no_grad():
        test = distance_loss(model(test_views), test_points, test_matched).item()
    print(f"epoch {epoch}: train {total / len(order):.4f}  test {test:.4f}")
