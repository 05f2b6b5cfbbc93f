"""How many bikes are rented in an hour, from the weather and the time of the day: a Poisson regression."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(25)


def make_hours(num: int) -> TensorDataset:
    hour = torch.randint(0, 24, (num,)).float()
    warmth, rain = torch.randn(num), torch.rand(num)
    angle = 2 * math.pi * hour / 24
    log_rate = 0.8 - 0.9 * angle.cos() + 0.4 * warmth - 1.2 * rain
    features = torch.stack([angle.sin(), angle.cos(), warmth, rain - 0.5], dim=1)
    return TensorDataset(features, torch.poisson(log_rate.exp()))


class RentalRate(nn.Module):
    """Gives the expected number of rentals, which is positive."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.hidden = nn.Linear(4, width)
        self.out = nn.Linear(width, 1)
        self.positive = nn.Softplus()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.positive(self.out(torch.tanh(self.hidden(features)))).squeeze(1)


hours, held_out = random_split(make_hours(1200), [1000, 200])
loader = DataLoader(hours, batch_size=50, shuffle=True)
model = RentalRate()
criterion = nn.PoissonNLLLoss(log_input=False)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(3):
    model.train()
    for features, rentals in loader:
        optimizer.zero_grad()
        loss = criterion(model(features), rentals)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        errors = [(model(features) - rentals).abs() for features, rentals in DataLoader(held_out, batch_size=50)]
    print(f"epoch {epoch}: mean error {torch.cat(errors).mean():.3f} rentals")
