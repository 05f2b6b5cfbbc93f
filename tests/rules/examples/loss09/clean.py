import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(70, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.MSELoss(reduction="sum")
running = 0.0
for a, b in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(a), b)
    loss.backward()
    optimizer.step()
    running += loss.item()
print(running / len(loader))
model.eval()
total = 0.0
with torch.no_grad():
    for a, b in loader:
        total += criterion(model(a), b).item()
print(total / len(loader.dataset))
