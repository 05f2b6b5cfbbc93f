import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(16, 8), nn.Linear(4, 16)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for step in range(4):
    x = torch.rand(32, 16)
    mean, logvar = encoder(x).chunk(2, dim=1)
    z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
    error = F.mse_loss(decoder(z), x)
    divergence = -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
    loss = error + divergence / x.numel()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
