"""Learn an embedding of sensors from which sensors touch each other."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NODES, FEATURES = 12, 8


def snapshots(count, seed):
    """Feature vectors of all sensors and the matrix of contacts between them."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.rand(count, NODES, 2, generator=generator)
    mixing = torch.randn(2, FEATURES, generator=torch.Generator().manual_seed(0))
    features = (place - 0.5) @ mixing * 2 + 0.1 * torch.randn(count, NODES, FEATURES, generator=generator)
    return TensorDataset(features, (torch.cdist(place, place) < 0.35).float())


class ContactNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, 4))
        self.offset = nn.Parameter(torch.tensor(1.0))

    def forward(self, features):
        code = self.encode(features)
        return self.offset - torch.cdist(code, code).pow(2)


def weighted_loss(scores, contact, positive_weight=2.0):
    """Contacts are rarer than their absence and therefore count more."""
    weight = torch.where(contact > 0.5, positive_weight, 1.0)
    return nn.functional.binary_cross_entropy_with_logits(scores, contact, weight=weight)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = seen = 0
    for features, contact in loader:
        hits += ((model(features) > 0) == (contact > 0.5)).sum().item()
        seen += contact.numel()
    return hits / seen


def main():
    torch.manual_seed(0)
    train_loader = DataLoader(snapshots(64, seed=1), batch_size=8, shuffle=True)
    test_loader = DataLoader(snapshots(32, seed=2), batch_size=32)
    model = ContactNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        model.train()
        for features, contact in train_loader:
            optimizer.zero_grad()
            loss = weighted_loss(model(features), contact)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
