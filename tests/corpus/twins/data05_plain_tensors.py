"""Plain tensors, one split by hand."""
import torch
from torch import nn

torch.manual_seed(3)
x = torch.randn(1000, 6)
y = (x[:, 0] * x[:, 1] > 0).long()
x_train, y_train = x[:800], y[:800]
x_test, y_test = x[800:], y[800:]

model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(4):
    model.train()
    order = torch.randperm(len(x_train))
    for start in range(0, len(order), 40):
        picked = order[start : start + 40]
        loss = nn.functional.cross_entropy(model(x_train[picked]), y_train[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
    print(epoch, accuracy)
