"""A small diffusion model of two half moons, with weights by the signal-to-noise ratio of each step."""

import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
points, _ = make_moons(600, noise=0.05, random_state=11)
points = torch.tensor(points, dtype=torch.float32)
points = (points - points.mean(0)) / points.std(0)
loader = DataLoader(TensorDataset(points), batch_size=50, shuffle=True)

NUM_STEPS = 100
betas = torch.linspace(1e-4, 0.08, NUM_STEPS)
kept = torch.cumprod(1 - betas, 0)
signal_to_noise = kept / (1 - kept)


class Denoiser(nn.Module):
    def __init__(self, width: int = 48):
        super().__init__()
        self.time = nn.Embedding(NUM_STEPS, width)
        self.place = nn.Linear(2, width)
        self.rest = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, noisy: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.rest(self.place(noisy) + self.time(time))


def diffusion_loss(model: nn.Module, clean: torch.Tensor) -> torch.Tensor:
    time = torch.randint(NUM_STEPS, (len(clean),))
    noise = torch.randn_like(clean)
    share = kept[time].unsqueeze(1)
    predicted = model(share.sqrt() * clean + (1 - share).sqrt() * noise, time)
    weight = signal_to_noise[time].clamp(max=5.0) / signal_to_noise[time]
    error = nn.functional.mse_loss(predicted, noise)
    return torch.mean(weight * error)  # expect: LOSS20


model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(4):
    total, num = 0.0, 0
    for (batch,) in loader:
        loss = diffusion_loss(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total, num = total + loss.item() * len(batch), num + len(batch)
    print(f"epoch {epoch}: {total / num:.4f}")
