"""A run in two sessions: the second one resumes from the checkpoint of the first."""

import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Surrogate(nn.Module):
    """Network that replaces an expensive simulation of a beam."""

    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2)
        )

    def forward(self, load):
        return self.net(load)


def simulations(count, seed):
    load = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    bend = torch.sin(load[:, 0] + load[:, 1]) + 0.3 * load[:, 2] * load[:, 3]
    twist = torch.tanh(load[:, 4]) - 0.5 * load[:, 5]
    return TensorDataset(load, torch.stack([bend, twist], dim=1))


def save_checkpoint(path, epoch, model, optimizer):
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def load_checkpoint(path, model, optimizer):
    checkpoint = torch.load(path, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return checkpoint["epoch"] + 1


def session(path, last_epoch):
    """Train up to last_epoch, from the checkpoint where there is one."""
    loader = DataLoader(simulations(640, seed=1), batch_size=32, shuffle=True)
    model = Surrogate()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    first_epoch = load_checkpoint(path, model, optimizer) if os.path.exists(path) else 0
    for epoch in range(first_epoch, last_epoch):
        model.train()
        total, seen = 0.0, 0
        for load, response in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(load), response)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(load)
            seen += len(load)
        print(f"epoch {epoch}: mean squared error {total / seen:.5f}")
        save_checkpoint(path, epoch, model, optimizer)
    return model


@torch.no_grad()
def test_error(model):
    load, response = simulations(256, seed=2).tensors
    model.eval()
    return nn.functional.mse_loss(model(load), response).item()


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = os.path.join(folder, "last.pt")
        session(checkpoint, last_epoch=3)
        model = session(checkpoint, last_epoch=6)
    print(f"test error {test_error(model):.5f}")
