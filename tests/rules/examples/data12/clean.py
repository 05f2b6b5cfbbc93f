import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
x = torch.randn(200, 4)
y = (torch.arange(200) % 10 == 0).long()
difficulty = 1 + (x[:, 0] > 0).float()
sampler = WeightedRandomSampler(difficulty, num_samples=200)
loader = DataLoader(TensorDataset(x, y), batch_size=50, sampler=sampler)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
counts = y.bincount().float()
criterion = nn.CrossEntropyLoss(weight=counts.sum() / counts)
for inputs, labels in loader:
    loss = criterion(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
