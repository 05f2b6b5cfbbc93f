"""Denoise line drawings with a pixel term and a feature term from a pretrained encoder."""
import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(2)
SIZE = 16


def drawings(n, g):
    x = torch.zeros(n, 1, SIZE, SIZE)
    label = torch.randint(4, (n,), generator=g)
    for i in range(n):
        a, b = torch.randint(3, SIZE - 3, (2,), generator=g).tolist()
        if label[i] in (0, 2):
            x[i, 0, a] = 1
        if label[i] in (1, 2):
            x[i, 0, :, b] = 1
        if label[i] == 3:
            x[i, 0] = torch.eye(SIZE).roll(a - 8, 0)
    return x, label


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.ReLU()
        )
        self.fc = nn.Linear(16, 4)

    def features(self, x):
        return self.conv(x)

    def forward(self, x):
        return self.fc(self.conv(x).amax(dim=(2, 3)))


class PerceptualLoss(nn.Module):
    def __init__(self, encoder, weight):
        super().__init__()
        self.encoder = encoder.eval().requires_grad_(False)
        self.weight = weight

    def forward(self, output, target):
        pixel = F.mse_loss(output, target)
        with torch.no_grad():
            want = self.encoder.features(target)
        got = self.encoder.features(output)
        feature = F.mse_loss(got, want)
        return pixel + self.weight * feature, feature.detach()


def pretrain(encoder, x, y):
    opt = torch.optim.Adam(encoder.parameters(), lr=4e-3)
    for _ in range(3):
        for idx in torch.randperm(len(x)).split(40):
            noisy = x[idx] + 0.2 * torch.randn_like(x[idx])
            loss = F.cross_entropy(encoder(noisy), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()


gen = torch.Generator().manual_seed(3)
x_train, y_train = drawings(480, gen)
x_test, y_test = drawings(300, gen)
encoder = Encoder()
pretrain(encoder, x_train, y_train)

denoiser = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1)
)
objective = PerceptualLoss(encoder, weight=2.0)
opt = torch.optim.Adam(denoiser.parameters(), lr=4e-3)
for epoch in range(4):
    total = 0.0
    for idx in torch.randperm(len(x_train)).split(32):
        clean = x_train[idx]
        loss, _ = objective(denoiser(clean + 0.9 * torch.randn_like(clean)), clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total:.4f}")

denoiser.eval()
with torch.no_grad():
    restored = denoiser(x_test + 0.9 * torch.randn(x_test.shape, generator=gen))
    _, feature = objective(restored, x_test)
    acc = (encoder(restored).argmax(1) == y_test).float().mean()
print(f"test pixel mse {F.mse_loss(restored, x_test):.4f}")
print(f"test feature distance {feature:.4f}  recognised after denoising {acc:.4f}")
