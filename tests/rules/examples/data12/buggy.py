import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
x = torch.randn(200, 4)
y = (torch.arange(200) % 10 == 0).long()
weights = y.bincount().float()[y]
sampler = WeightedRandomSampler(weights, num_samples=200)  # expect: DATA12
loader = DataLoader(TensorDataset(x, y), batch_size=20, sampler=sampler)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, labels in loader:
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
