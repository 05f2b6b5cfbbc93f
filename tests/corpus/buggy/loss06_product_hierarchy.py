"""Two-level product classification with a penalty on inconsistent predictions."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEPARTMENTS = 4
PER_DEPARTMENT = 3
CATEGORIES = DEPARTMENTS * PER_DEPARTMENT
PARENT = torch.arange(CATEGORIES) // PER_DEPARTMENT


def products(count, seed, centres):
    generator = torch.Generator().manual_seed(seed)
    category = torch.randint(0, CATEGORIES, (count,), generator=generator)
    features = centres[category] + 1.2 * torch.randn(count, centres.shape[1], generator=generator)
    return TensorDataset(features, PARENT[category], category)


class HierarchyNet(nn.Module):
    def __init__(self, features, width=64):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(features, width), nn.ReLU())
        self.department = nn.Linear(width, DEPARTMENTS)
        self.category = nn.Sequential(
            nn.Linear(width + DEPARTMENTS, width), nn.ReLU(), nn.Linear(width, CATEGORIES)
        )

    def forward(self, x):
        h = self.shared(x)
        department = self.department(h)
        return department, self.category(torch.cat([h, department], dim=1))


def dependence_loss(department_logits, category_logits):
    """Penalise a category that does not belong to the predicted department."""
    department = department_logits.argmax(dim=1)  # expect: LOSS06
    category = category_logits.argmax(dim=1)  # expect: LOSS06
    mismatch = (PARENT[category] != department).float()
    return (torch.exp(mismatch) - 1).mean()


def total_loss(outputs, department, category, weight=0.8):
    department_logits, category_logits = outputs
    layer_loss = F.cross_entropy(department_logits, department) + F.cross_entropy(category_logits, category)
    return layer_loss + weight * dependence_loss(department_logits, category_logits)  # expect: LOSS06


@torch.no_grad()
def report(model, loader):
    model.eval()
    hits = consistent = seen = 0
    for x, _, category in loader:
        department_logits, category_logits = model(x)
        guess = category_logits.argmax(dim=1)
        hits += (guess == category).sum().item()
        consistent += (PARENT[guess] == department_logits.argmax(dim=1)).sum().item()
        seen += len(x)
    return hits / seen, consistent / seen


def main():
    torch.manual_seed(2)
    centres = torch.randn(CATEGORIES, 24)
    train_loader = DataLoader(products(960, 3, centres), batch_size=48, shuffle=True)
    test_loader = DataLoader(products(240, 4, centres), batch_size=120)
    model = HierarchyNet(24)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(4):
        model.train()
        for x, department, category in train_loader:
            loss = total_loss(model(x), department, category)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy, consistency = report(model, test_loader)
        print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {accuracy:.3f} consistent {consistency:.3f}")


if __name__ == "__main__":
    main()
