"""Features of small digits without labels: two noisy views of each image shall be close to each other."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(22)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16


def augment(x: torch.Tensor) -> torch.Tensor:
    moved = torch.roll(x, shifts=int(torch.randint(-1, 2, ())), dims=3)
    return moved * (torch.rand_like(moved) > 0.1) + 0.05 * torch.randn_like(moved)


class NTXent(nn.Module):
    def __init__(self, temperature: float):
        super().__init__()
        self.temperature = temperature

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        num = len(one)
        z = F.normalize(torch.cat([one, other], dim=0), dim=-1)
        logits = torch.matmul(z, z.T) / self.temperature
        logits = logits.masked_fill(torch.eye(2 * num, dtype=torch.bool), float("-inf"))
        partners = torch.cat([torch.arange(num, 2 * num), torch.arange(num)])
        return F.cross_entropy(logits, partners)


encoder = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(12, 24, 3, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(216, 48),
)
projector = nn.Sequential(nn.ReLU(), nn.Linear(48, 16))
criterion = NTXent(temperature=0.3)
optimizer = torch.optim.Adam([*encoder.parameters(), *projector.parameters()], lr=1e-3)
for epoch in range(2):
    total, num_batches = 0.0, 0
    for rows in torch.randperm(len(images)).split(96):
        batch = images[rows]
        first, second = projector(encoder(augment(batch))), projector(encoder(augment(batch)))
        loss = criterion(first, second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total, num_batches = total + loss.item(), num_batches + 1
    print(f"epoch {epoch}: loss {total / num_batches:.3f}")
