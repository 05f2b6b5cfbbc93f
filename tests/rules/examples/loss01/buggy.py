import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(dim=-1))
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.CrossEntropyLoss()
for step in range(4):
    x = torch.randn(16, 8)
    loss = criterion(model(x), x[:, :4].argmax(1))  # expect: LOSS01
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
