"""Removes hum from a waveform with a gated dilated network; loss is spectral plus waveform error."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GatedBlock(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.signal = nn.Conv1d(channels, channels, 3, padding=dilation, dilation=dilation)
        self.gate = nn.Conv1d(channels, channels, 3, padding=dilation, dilation=dilation)

    def forward(self, x):
        return x + torch.tanh(self.signal(x)) * torch.sigmoid(self.gate(x))


class Enhancer(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.inp = nn.Conv1d(1, channels, 7, padding=3)
        self.blocks = nn.Sequential(*[GatedBlock(channels, 2**i) for i in range(3)])
        self.out = nn.Conv1d(channels, 1, 1)

    def forward(self, wave):
        return self.out(self.blocks(self.inp(wave)))


def waves(n, length, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length).float()
    pitch = 0.1 + 0.2 * torch.rand(n, 1, 1, generator=g)
    clean = torch.sin(pitch * t) * torch.cos(0.02 * t + 6.28 * torch.rand(n, 1, 1, generator=g))
    hum = 0.8 * torch.sin(1.3 * t + 6.28 * torch.rand(n, 1, 1, generator=g))
    return TensorDataset(clean + hum + 0.1 * torch.randn(n, 1, length, generator=g), clean)


def enhancement_loss(estimate, clean):
    spectrum = torch.fft.rfft(estimate, norm="ortho") - torch.fft.rfft(clean, norm="ortho")
    return (estimate - clean).abs().mean() + 0.5 * torch.view_as_real(spectrum).abs().mean()


class EnhancerTrainer:
    def __init__(self, model, lr=0.05, max_norm=0.2):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.max_norm = max_norm

    def batch(self, noisy, clean):
        loss = enhancement_loss(self.model(noisy), clean)
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        return loss.item(), norm.item()

    def fit(self, loader, valid_loader, epochs):
        for epoch in range(epochs):
            self.model.train()
            results = [self.batch(noisy, clean) for noisy, clean in loader]
            loss, norm = (sum(column) / len(results) for column in zip(*results, strict=True))
            print(f"epoch {epoch}: loss {loss:.3f}  norm {norm:.3f}  valid {self.validate(valid_loader):.3f}")

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        total, count = 0.0, 0
        for noisy, clean in loader:
            total += enhancement_loss(self.model(noisy), clean).item() * len(clean)
            count += len(clean)
        return total / count


if __name__ == "__main__":
    torch.manual_seed(55)
    train_loader = DataLoader(waves(256, 128, seed=1), batch_size=32, shuffle=True, drop_last=True)
    valid_loader = DataLoader(waves(64, 128, seed=2), batch_size=64)
    EnhancerTrainer(Enhancer()).fit(train_loader, valid_loader, epochs=5)
