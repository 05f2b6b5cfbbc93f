import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 6)
data = TensorDataset(x[:192], x[:192].sum(1, keepdim=True))
held_out = TensorDataset(x[192:], x[192:].sum(1, keepdim=True))
loader = DataLoader(data, batch_size=32, shuffle=True)
validation = DataLoader(held_out, batch_size=32)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    inputs, targets = next(iter(loader))
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        inputs, targets = next(iter(validation))
        print(nn.functional.mse_loss(model(inputs), targets).item())
    model.train()
