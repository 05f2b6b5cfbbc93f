"""Reports accuracy on the training data as well, through its own loader in order."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(500, 9)
y = x[:, :3].argmax(1)
order = y[:400].argsort()
train_set = TensorDataset(x[:400][order], y[:400][order])
test_set = TensorDataset(x[400:], y[400:])
train_loader = DataLoader(train_set, batch_size=25, shuffle=True)
train_eval_loader = DataLoader(train_set, batch_size=100)
test_loader = DataLoader(test_set, batch_size=100)


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        good = sum((model(a).argmax(1) == b).sum().item() for a, b in loader)
    model.train()
    return good / len(loader.dataset)


model = nn.Sequential(nn.Linear(9, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(4):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    print(epoch, accuracy(model, train_eval_loader), accuracy(model, test_loader))
