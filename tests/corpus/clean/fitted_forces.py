"""Energies and forces of small molecules: derivatives with a graph in training, without one in evaluation."""

import torch
from torch import nn

torch.manual_seed(3)


class Potential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = places.requires_grad_(True)
        energy = self.net(places).squeeze(1)
        (slope,) = torch.autograd.grad(energy.sum(), places, create_graph=self.training)
        return energy, -slope


def error(places: torch.Tensor) -> torch.Tensor:
    energy, force = model(places)
    true_energy, true_force = places.detach().square().sum(1), -2 * places.detach()
    return (energy - true_energy).square().mean() + (force - true_force).square().mean()


model = Potential()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
held_out = torch.randn(64, 6)
for epoch in range(4):
    for _ in range(8):
        loss = error(torch.randn(32, 6))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    print(f"held-out error {sum(error(part).item() for part in held_out.split(16)) / 4:.3f}")
    model.train()
