"""Churn prediction on few, noisy customers; the epoch with the best validation loss is kept."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def customers(n, generator):
    x = torch.randn(n, 20, generator=generator)
    score = 1.2 * x[:, 0] - x[:, 1] * x[:, 2] + 0.5 * x[:, 3] + torch.randn(n, generator=generator)
    return TensorDataset(x, (score > 0.5).float())


class ChurnNet(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(20, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def run_phase(model, loader, criterion, optimizer=None):
    training = optimizer is not None
    model.train(training)
    total, hits, count = 0.0, 0, 0
    with torch.set_grad_enabled(training):
        for x, y in loader:
            logits = model(x)
            loss = criterion(logits, y)
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(y)
            hits += ((logits > 0) == y.bool()).sum().item()
            count += len(y)
    return total / count, hits / count


def train_model(model, loaders, criterion, optimizer, num_epochs):
    best_model_wts, best_loss, best_epoch = None, float("inf"), -1
    for epoch in range(num_epochs):
        train_loss, _ = run_phase(model, loaders["train"], criterion, optimizer)
        val_loss, val_acc = run_phase(model, loaders["val"], criterion)
        if val_loss < best_loss:
            best_loss, best_epoch = val_loss, epoch
            best_model_wts = {name: value.clone() for name, value in model.state_dict().items()}
        print(f"epoch {epoch}: train {train_loss:.3f}  val {val_loss:.3f}  accuracy {val_acc:.3f}")
    print(f"best epoch {best_epoch}: val {best_loss:.3f}")
    model.load_state_dict(best_model_wts)
    return model


def main():
    torch.manual_seed(12)
    generator = torch.Generator().manual_seed(12)
    loaders = {
        "train": DataLoader(customers(256, generator), batch_size=32, shuffle=True),
        "val": DataLoader(customers(256, generator), batch_size=256),
    }
    criterion = nn.BCEWithLogitsLoss()
    model = ChurnNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model = train_model(model, loaders, criterion, optimizer, num_epochs=12)
    final_loss, final_acc = run_phase(model, loaders["val"], criterion)
    print(f"restored model: val {final_loss:.3f}  accuracy {final_acc:.3f}")


if __name__ == "__main__":
    main()
