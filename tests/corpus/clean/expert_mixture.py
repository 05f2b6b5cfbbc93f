"""Mixture of experts with top-2 routing: an expert that no sample chose gets no gradient in that step."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(113)

EXPERTS, TOP, INPUTS = 4, 2, 6


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.outer(F.gelu(self.inner(x)))


class MixtureOfExperts(nn.Module):
    """Returns the mixed output and the router's probabilities, one row per sample."""

    def __init__(self, width):
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert(width) for _ in range(EXPERTS))

    def forward(self, x):
        probabilities = self.router(x).softmax(dim=-1)
        weight, chosen = probabilities.topk(TOP, dim=-1)
        weight = weight / weight.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slot = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, weight[rows, slot, None] * expert(x[rows]))
        return out, probabilities


class Regressor(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = nn.Linear(INPUTS, width)
        self.norm = nn.LayerNorm(width)
        self.mixture = MixtureOfExperts(width)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        h = self.stem(x)
        mixed, probabilities = self.mixture(self.norm(h))
        return self.head(h + mixed).squeeze(-1), probabilities


def balance_loss(probabilities):
    """Switch-style: small when the experts share the work evenly."""
    with torch.no_grad():
        share = F.one_hot(probabilities.topk(TOP, dim=-1).indices, EXPERTS).float().sum(1).mean(0) / TOP
    return EXPERTS * (share * probabilities.mean(dim=0)).sum()


def piecewise(count):
    x = torch.randn(count, INPUTS)
    left = torch.sin(2 * x[:, 1]) + x[:, 2]
    right = x[:, 3] * x[:, 4]
    return x, torch.where(x[:, 0] < 0, left, right) + 0.05 * torch.randn(count)


x_train, y_train = piecewise(1024)
x_test, y_test = piecewise(512)
model = Regressor()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

for epoch in range(8):
    model.train()
    total = 0.0
    for rows in torch.randperm(len(x_train)).split(64):
        prediction, probabilities = model(x_train[rows])
        error = F.mse_loss(prediction, y_train[rows])
        loss = error + 0.01 * balance_loss(probabilities)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += error.item() * len(rows)

    model.eval()
    with torch.no_grad():
        prediction, _ = model(x_test)
        test_error = F.mse_loss(prediction, y_test).item()
    print(f"epoch {epoch}: train {total / len(x_train):.3f} test {test_error:.3f}")
