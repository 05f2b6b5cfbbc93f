import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizers = [torch.optim.SGD(model[i].parameters(), lr=0.05) for i in (0, 2)]
for step in range(8):
    turn = step % 2
    model[0].requires_grad_(turn == 0)
    model[2].requires_grad_(turn == 1)
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizers[turn].zero_grad()
    loss.backward()
    optimizers[turn].step()
