"""Train a convolutional network on digits drawn as colour images of 64 by 64. SGD with momentum."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Digits, made larger, each in a colour of its own."""

    def __init__(self):
        rows, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(rows / 16, dtype=torch.float32).view(-1, 1, 8, 8)
        self.labels = torch.tensor(labels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        large = F.interpolate(self.images[index][None], size=64, mode="bilinear")[0]
        colour = 0.5 + torch.rand(3, 1, 1)
        return (large * colour - 0.3) / 0.3, self.labels[index]


def block(num_in, num_out):
    conv = nn.Conv2d(num_in, num_out, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(num_out), nn.ReLU(), nn.MaxPool2d(2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=200)
    args = parser.parse_args()

    torch.manual_seed(7)
    loader = DataLoader(Images(), batch_size=16, shuffle=True, drop_last=True)
    model = nn.Sequential(
        block(3, 16), block(16, 32), block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)

    step = 0
    for epoch in range(args.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch}, step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
