"""Classify radio modulations from their spectrum magnitudes."""

import torch
from torch import nn

CLASSES = 8
BINS = 48


class ModulationNet(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(BINS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.classify = nn.Linear(width, CLASSES)
        self.reset_parameters()

    def reset_parameters(self):
        for module in self.body:
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.classify.weight, std=0.03)
        nn.init.zeros_(self.classify.bias)

    def forward(self, spectrum):
        return self.classify(self.body(spectrum))


def spectra(count, peaks, generator):
    """Each modulation has its own set of peaks on a noisy floor, standardised per bin."""
    label = torch.randint(0, CLASSES, (count,), generator=generator)
    spectrum = peaks[label] + torch.randn(count, BINS, generator=generator)
    return spectrum / 1.4, label


def make_step(model, optimizer):
    criterion = nn.CrossEntropyLoss()

    def step(spectrum, label):
        optimizer.zero_grad()
        loss = criterion(model(spectrum), label)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main():
    torch.manual_seed(4)
    generator = torch.Generator().manual_seed(4)
    peaks = torch.randn(CLASSES, BINS, generator=generator)
    train_x, train_y = spectra(960, peaks, generator)
    test_x, test_y = spectra(240, peaks, generator)

    model = ModulationNet()
    step = make_step(model, torch.optim.Adam(model.parameters(), lr=5e-4))
    for epoch in range(4):
        model.train()
        losses = [step(train_x[i], train_y[i]) for i in torch.randperm(len(train_x)).split(40)]
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        print(f"epoch {epoch}: first {losses[0]:.3f} last {losses[-1]:.3f} test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
