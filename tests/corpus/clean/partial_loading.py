"""Transfer: the backbone's weights are loaded, the head for the new classes is fresh on purpose
(strict=False).
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tagger(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU())
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def clusters(count, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 16, generator=generator)
    label = torch.randint(0, classes, (count,), generator=generator)
    return TensorDataset(centres[label] + 0.8 * torch.randn(count, 16, generator=generator), label)


def train(model, dataset, groups, epochs):
    loader = DataLoader(dataset, batch_size=48, shuffle=True)
    optimizer = torch.optim.Adam(groups)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        print(f"  epoch {epoch}: loss {total / len(dataset):.3f}")


def load_backbone(model, path):
    """Load everything but the head; anything else that does not fit is a mistake."""
    state = torch.load(path, weights_only=True)
    state = {key: value for key, value in state.items() if not key.startswith("head.")}
    result = model.load_state_dict(state, strict=False)
    assert not result.unexpected_keys
    assert set(result.missing_keys) == {"head.weight", "head.bias"}
    print(f"loaded {len(state)} tensors, fresh: {', '.join(result.missing_keys)}")


def main():
    torch.manual_seed(41)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pretrained.pt"
        print("pretraining, 8 classes")
        source = Tagger(classes=8)
        train(source, clusters(960, 8, seed=1), [{"params": source.parameters(), "lr": 3e-3}], epochs=3)
        torch.save(source.state_dict(), path)

        model = Tagger(classes=3)
        load_backbone(model, path)

    print("transfer, 3 classes")
    groups = [
        {"params": model.backbone.parameters(), "lr": 1e-3},
        {"params": model.head.parameters(), "lr": 1e-2},
    ]
    dataset = clusters(640, 3, seed=2)
    train_set = torch.utils.data.Subset(dataset, range(480))
    train(model, train_set, groups, epochs=3)
    x_test, y_test = dataset.tensors[0][480:], dataset.tensors[1][480:]
    model.eval()
    with torch.no_grad():
        print(f"test accuracy {(model(x_test).argmax(1) == y_test).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
