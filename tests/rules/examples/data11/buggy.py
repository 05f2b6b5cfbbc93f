import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Readings(Dataset):
    def __init__(self):
        self.x = 5 + 2 * torch.randn(64, 8)
        self.y = self.x.mean(1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        x -= 5  # expect: DATA11
        x /= 2
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
