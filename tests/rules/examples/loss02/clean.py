import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x = torch.randn(16, 8)
    probability = torch.sigmoid(model(x)).clamp(1e-6, 1 - 1e-6)
    loss = F.binary_cross_entropy(probability, (x[:, :1] > 0).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
