"""Pretrain an encoder by reconstruction, then train a classifier on the frozen encoder."""

import tempfile
from pathlib import Path

import torch
from torch import nn

SENSORS, CODE, STATES = 48, 8, 3


def plant_readings(count, seed):
    """Readings lie near a plane of few dimensions; the state depends on the position in it."""
    basis = torch.randn(4, SENSORS, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    position = torch.randn(count, 4, generator=generator)
    readings = position @ basis / 2 + 0.6 * torch.randn(count, SENSORS, generator=generator)
    return readings, torch.bucketize(position[:, 0].contiguous(), torch.tensor([-0.5, 0.5]))


def make_encoder():
    return nn.Sequential(nn.Linear(SENSORS, 64), nn.ReLU(), nn.Linear(64, CODE), nn.Tanh())


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = make_encoder()
        self.decoder = nn.Linear(CODE, SENSORS)

    def forward(self, readings):
        return self.decoder(self.encoder(readings))


class StateClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = make_encoder()
        self.head = nn.Linear(CODE, STATES)

    def forward(self, readings):
        return self.head(self.backbone(readings))


def epochs_of(data, epochs, batch_size):
    for _ in range(epochs):
        yield from torch.randperm(len(data)).split(batch_size)


def pretrain(path):
    readings, _ = plant_readings(768, seed=1)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for index in epochs_of(readings, epochs=8, batch_size=32):
        loss = nn.functional.mse_loss(model(readings[index]), readings[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"reconstruction error {loss.item():.4f}")
    torch.save({"state_dict": model.state_dict()}, path)


def load_backbone(model, path):
    state = torch.load(path, weights_only=True)["state_dict"]
    model.backbone.load_state_dict(state, strict=False)  # expect: CKPT01
    return model


def train_head(path):
    readings, state = plant_readings(48, seed=2)
    model = load_backbone(StateClassifier(), path)
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    for index in epochs_of(readings, epochs=25, batch_size=12):
        loss = nn.functional.cross_entropy(model(readings[index]), state[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    readings, state = plant_readings(512, seed=3)
    model.eval()
    with torch.no_grad():
        accuracy = (model(readings).argmax(dim=1) == state).float().mean().item()
    print(f"accuracy with 48 labels: {accuracy:.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        pretrain(Path(folder) / "autoencoder.pt")
        train_head(Path(folder) / "autoencoder.pt")
