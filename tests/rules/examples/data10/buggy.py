import torch
from torch import nn

torch.manual_seed(0)
series = torch.randn(400).cumsum(0)
starts = torch.arange(380)
windows = series[starts[:, None] + torch.arange(8)]
following = series[starts + 7]
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(12):
    batch = torch.randint(0, 380, (32,))
    loss = nn.functional.mse_loss(model(windows[batch]).squeeze(1), following[batch])  # expect: DATA10
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
