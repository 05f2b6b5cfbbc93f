"""Machine sounds: classify the fault from a spectrogram of the recording."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, FAULTS = 512, 4


def record(index, generator):
    fault = index % FAULTS
    t = torch.linspace(0, 1, SAMPLES)
    tone = torch.sin(6.283 * (20 + 30 * fault) * t + 6.283 * torch.rand(1, generator=generator))
    return tone + 0.8 * torch.randn(SAMPLES, generator=generator), fault


def spectrogram(wave):
    """Log magnitudes; the decoder of the recorder needs about two milliseconds for a clip."""
    time.sleep(0.002)
    spectrum = torch.stft(wave, 64, hop_length=32, window=torch.hann_window(64), return_complex=True)
    return (torch.log1p(spectrum.abs()) - 1.2) / 0.6


class MachineSounds(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.clips = [record(index, generator) for index in range(count)]
        self.features = [spectrogram(wave) for wave, _ in self.clips]

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, index):
        return self.features[index], self.clips[index][1]


class FaultNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(33, 96, 3, padding=1)
        self.conv2 = nn.Conv1d(96, 96, 3, padding=1)
        self.out = nn.Linear(96, FAULTS)

    def forward(self, features):
        h = torch.relu(self.conv1(features))
        h = torch.relu(self.conv2(h))
        return self.out(h.mean(dim=2))


def main():
    torch.manual_seed(0)
    train_set, test_set = MachineSounds(192, seed=1), MachineSounds(32, seed=2)
    train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=32)
    model = FaultNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        model.train()
        for features, fault in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), fault)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = sum((model(f).argmax(1) == label).sum().item() for f, label in test_loader)
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {hits / len(test_set):.3f}")


if __name__ == "__main__":
    main()
