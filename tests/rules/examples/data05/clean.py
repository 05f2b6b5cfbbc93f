import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, x.sum(1))
train_set, val_set = random_split(data, [48, 16])
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
val_loader = DataLoader(val_set, batch_size=32)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for x, y in train_loader:
        loss = (model(x).squeeze(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    train_again = DataLoader(train_set, batch_size=24)
    with torch.no_grad():
        for x, y in train_again:
            model(x)
    with torch.no_grad():
        for x, y in val_loader:
            (model(x).squeeze(1) - y).square().mean()
