"""Tissue types from gene expression; part of the samples is held out for validation."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(17)

GENES, TISSUES, SAMPLES = 200, 5, 400
BATCH_SIZE = 40


class TissueNet(nn.Module):
    def __init__(self, width=384):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(GENES, width), nn.ReLU(), nn.Linear(width, 32), nn.ReLU())
        self.classifier = nn.Linear(32, TISSUES)

    def forward(self, expression):
        return self.classifier(self.encoder(expression))


# a few marker genes for each tissue, everything else is background
tissue = torch.randint(0, TISSUES, (SAMPLES,))
markers = torch.zeros(TISSUES, GENES)
for t in range(TISSUES):
    markers[t, torch.randperm(GENES)[:6]] = 1.0
expression = markers[tissue] + torch.randn(SAMPLES, GENES)
dataset = TensorDataset(expression, tissue)

val_size = SAMPLES // 5
train_set, val_set = random_split(dataset, [SAMPLES - val_size, val_size])
train_loader = DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True)
val_loader = DataLoader(val_set, batch_size=100)

model = TissueNet()
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=5e-4)

for epoch in range(8):
    model.train()
    train_loss = 0.0
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        train_loss += loss.item() * len(yb)

    model.eval()
    val_hits, val_seen = 0, 0
    with torch.no_grad():
        for xb, yb in val_loader:
            val_hits += (model(xb).argmax(dim=1) == yb).sum().item()
            val_seen += len(yb)
    print(
        f"epoch {epoch}: train loss {train_loss / len(train_set):.4f}, "
        f"validation accuracy {val_hits / val_seen:.3f}"
    )
