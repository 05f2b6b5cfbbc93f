"""Vector-quantised autoencoder: nearest code by argmin, gradient passed straight through, commitment loss."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(163)

CODES, WIDTH, COMMITMENT = 32, 8, 0.25


class Quantiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.codebook = nn.Embedding(CODES, WIDTH)
        nn.init.normal_(self.codebook.weight, std=0.3)

    def forward(self, z):
        chosen = torch.cdist(z.detach(), self.codebook.weight.detach()).argmin(dim=1)
        code = self.codebook(chosen)
        pull_code = F.mse_loss(code, z.detach(), reduction="none").mean(dim=1)
        pull_encoder = F.mse_loss(z, code.detach(), reduction="none").mean(dim=1)
        straight_through = z + (code - z).detach()
        return straight_through, pull_code + COMMITMENT * pull_encoder, chosen


class VQAutoencoder(nn.Module):
    def __init__(self, inputs=20):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, 48), nn.GELU(), nn.Linear(48, WIDTH))
        self.quantiser = Quantiser()
        self.decoder = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, inputs))

    def forward(self, x):
        quantised, penalty, chosen = self.quantiser(self.encoder(x))
        return self.decoder(quantised), penalty, chosen


prototypes = torch.randn(10, 20)
x = prototypes[torch.randint(0, 10, (1200,))] + 0.2 * torch.randn(1200, 20)
x_train, x_test = x[:960], x[960:]

model = VQAutoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(10):
    model.train()
    total = 0.0
    for rows in torch.randperm(len(x_train)).split(64):
        restored, penalty, _ = model(x_train[rows])
        error = F.mse_loss(restored, x_train[rows])
        loss = error + penalty.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += error.item() * len(rows)

    model.eval()
    with torch.no_grad():
        restored, _, chosen = model(x_test)
        test_error = F.mse_loss(restored, x_test).item()
    if epoch % 3 == 0:
        print(
            f"epoch {epoch}: train {total / len(x_train):.3f} test {test_error:.3f} "
            f"codes in use {len(chosen.unique())}"
        )
