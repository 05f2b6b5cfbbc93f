import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Readings(Dataset):
    def __init__(self):
        self.x = 5 + 2 * torch.randn(64, 8)
        self.y = self.x.mean(1, keepdim=True)
        self.cache = torch.zeros(64, 8)
        self.num_reads = torch.zeros(64)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.num_reads[index] += 1
        if self.num_reads[index] == 1:
            self.cache[index] = (self.x[index] - 5) / 2
        x = self.cache[index].clone()
        x += 0.1 * torch.randn(8)
        return x, self.y[index]


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Readings(), batch_size=16, shuffle=True)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
