import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __init__(self, x, y, noise):
        self.x, self.y, self.noise = x, y, noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + self.noise * torch.randn(8), self.y[index]

torch.manual_seed(0)
x, y = torch.randn(64, 8), torch.randint(0, 3, (64,))
train_loader = DataLoader(Noisy(x[:48], y[:48], 0.1), batch_size=8, shuffle=True)
val_loader = DataLoader(Noisy(x[48:], y[48:], 0.1), batch_size=16)  # expect: DATA06
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in val_loader:
            nn.functional.cross_entropy(model(x), y)
