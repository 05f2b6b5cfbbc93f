"""fp16 autocast with loss scaling: gradients are unscaled before they are clipped."""

import torch
from torch import nn

torch.manual_seed(43)

STEPS, BATCH, CLIP = 80, 64, 1.0


class Denoiser(nn.Module):
    """Predicts the clean signal from the noisy one."""

    def __init__(self, length=32, width=64):
        super().__init__()
        self.encode = nn.Linear(length, width)
        self.mix = nn.Linear(width, width)
        self.decode = nn.Linear(width, length)

    def forward(self, x):
        h = torch.tanh(self.encode(x))
        return self.decode(h + torch.tanh(self.mix(h)))


def draw(count):
    t = torch.linspace(0, 6.28, 32)
    amplitude = 0.5 + torch.rand(count, 1)
    phase = 6.28 * torch.rand(count, 1)
    clean = amplitude * torch.sin(t + phase)
    return clean + 0.3 * torch.randn(count, 32), clean


model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
mse = nn.MSELoss()
largest = 0.0

model.train()
for step in range(STEPS):
    noisy, clean = draw(BATCH)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        restored = model(noisy)
    loss = mse(restored.float(), clean)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    scaler.step(optimizer)
    scaler.update()
    largest = max(largest, norm.item())
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.4f} scale {scaler.get_scale():.0f}")

model.eval()
with torch.no_grad():
    noisy, clean = draw(500)
    print(f"error before {mse(noisy, clean).item():.4f}, after {mse(model(noisy), clean).item():.4f}")
print(f"largest gradient norm {largest:.3f}")
