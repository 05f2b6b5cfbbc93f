"""Recognise gestures in accelerometer sequences with a transformer encoder."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LENGTH, CHANNELS, GESTURES = 20, 3, 4


def recordings(count, seed):
    generator = torch.Generator().manual_seed(seed)
    gesture = torch.randint(0, GESTURES, (count,), generator=generator)
    t = torch.linspace(0, 6.283, LENGTH).view(1, -1, 1)
    phase = 0.3 * torch.randn(count, 1, 1, generator=generator)
    axis = torch.arange(CHANNELS).view(1, 1, -1)
    motion = torch.sin((1 + gesture.view(-1, 1, 1)) * t + phase + axis)
    return TensorDataset(motion + 0.8 * torch.randn(motion.shape, generator=generator), gesture)


class GestureTransformer(nn.Module):
    def __init__(self, width=32, heads=4, layers=2):
        super().__init__()
        self.project = nn.Linear(CHANNELS, width)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            d_model=width,
            nhead=heads,
            dim_feedforward=64,
            dropout=0.1,
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=layers, enable_nested_tensor=False)
        self.head = nn.Linear(LENGTH * width, GESTURES)

    def forward(self, motion):
        tokens = self.project(motion) + self.position
        hidden = self.encoder(tokens)
        return self.head(hidden.flatten(1))


def train_epoch(model, loader, optimizer):
    model.train()
    total, seen = 0.0, 0
    for motion, gesture in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(motion), gesture)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(gesture)
        seen += len(gesture)
    return total / seen


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = seen = 0
    for motion, gesture in loader:
        hits += (model(motion).argmax(dim=1) == gesture).sum().item()
        seen += len(gesture)
    return hits / seen


def main():
    torch.manual_seed(0)
    train_loader = DataLoader(recordings(512, 1), batch_size=32, shuffle=True)
    test_loader = DataLoader(recordings(128, 2), batch_size=64)
    model = GestureTransformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(3):
        loss = train_epoch(model, train_loader, optimizer)
        print(f"epoch {epoch}: loss {loss:.4f}, test accuracy {accuracy(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
