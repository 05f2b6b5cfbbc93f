"""Detect stars in small sky images; detector with a prior on the rare positives."""

import math

import torch
import torch.nn.functional as F
from torch import nn

SIZE = 16
PRIOR = 0.01


def skies(count, seed):
    generator = torch.Generator().manual_seed(seed)
    stars = (torch.rand(count, 1, SIZE, SIZE, generator=generator) < 0.02).float()
    kernel = torch.tensor([[0.3, 0.6, 0.3], [0.6, 1.5, 0.6], [0.3, 0.6, 0.3]]).view(1, 1, 3, 3)
    glow = F.conv2d(stars, kernel, padding=1)
    return glow + 0.3 * torch.randn(glow.shape, generator=generator), stars


class StarDetector(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.score = nn.Conv2d(width, 1, 1)
        self.reset_parameters()

    def reset_parameters(self):
        """Start from the prior probability so that the first steps are stable."""
        bias = -math.log((1 - PRIOR) / PRIOR)
        for conv in (self.conv1, self.conv2, self.score):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            nn.init.constant_(conv.bias, bias)  # expect: PROBE04

    def forward(self, sky):
        h = F.relu(self.conv1(sky))  # expect: PROBE04
        h = F.relu(self.conv2(h))  # expect: PROBE04
        return self.score(h)


@torch.no_grad()
def f1_score(model, sky, stars):
    model.eval()
    found = (model(sky) > 0).float()
    model.train()
    return (2 * (found * stars).sum() / (found.sum() + stars.sum())).item()


def main():
    torch.manual_seed(0)
    train_sky, train_stars = skies(256, seed=1)
    test_sky, test_stars = skies(64, seed=2)
    model = StarDetector()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(5):
        for index in torch.randperm(len(train_sky)).split(16):
            loss = F.binary_cross_entropy_with_logits(model(train_sky[index]), train_stars[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, F1 {f1_score(model, test_sky, test_stars):.3f}")


if __name__ == "__main__":
    main()
