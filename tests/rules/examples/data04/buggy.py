import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
y = torch.arange(4).repeat_interleave(16)
x = torch.randn(64, 4) + y.unsqueeze(1)
loader = DataLoader(TensorDataset(x, y), batch_size=8)  # expect: DATA04
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
