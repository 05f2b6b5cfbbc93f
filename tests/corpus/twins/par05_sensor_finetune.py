"""Fine-tunes the head of a sensor classifier for a new machine; the body keeps what it has learnt."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SensorNet(nn.Module):
    def __init__(self, channels=6, hidden=48, states=4):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, 24, 5, stride=2), nn.GELU(), nn.Conv1d(24, hidden, 5, stride=2), nn.GELU()
        )
        self.head = nn.Linear(hidden, states)

    def forward(self, x):
        return self.head(self.body(x).mean(dim=2))


def machine_data(n, gain, seed):
    """Four operating states differ in the pitch of their vibration; each machine has its own gain."""
    g = torch.Generator().manual_seed(seed)
    state = torch.randint(4, (n,), generator=g)
    t = torch.arange(48).float()
    pitch = 0.3 + 0.35 * state.float()[:, None, None]
    phase = 6.28 * torch.rand(n, 6, 1, generator=g)
    x = gain * torch.sin(pitch * t + phase) + 0.4 * torch.randn(n, 6, 48, generator=g)
    return TensorDataset(x, state)


def run(model, optimizer, dataset, epochs, tag):
    loss_fn = nn.CrossEntropyLoss()
    loader = DataLoader(dataset, batch_size=40, shuffle=True)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        print(f"{tag} {epoch}: loss {total / len(dataset):.3f}")


@torch.no_grad()
def score(model, dataset):
    model.eval()
    x, y = dataset.tensors
    return (model(x).argmax(dim=1) == y).float().mean().item()


def main():
    torch.manual_seed(50)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine_a.pt"
        base = SensorNet()
        run(
            base, torch.optim.Adam(base.parameters(), lr=3e-3), machine_data(400, 1.0, seed=1), 3, "machine a"
        )
        torch.save(base.state_dict(), path)

        model = SensorNet()
        model.load_state_dict(torch.load(path, weights_only=True))

    model.head.reset_parameters()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("head")
    run(model, optimizer, machine_data(400, 0.7, seed=2), 4, "machine b")
    print(f"accuracy on machine b: {score(model, machine_data(200, 0.7, seed=3)):.3f}")


if __name__ == "__main__":
    main()
