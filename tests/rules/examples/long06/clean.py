import resource

import torch
from torch import nn

with open("/proc/self/status") as file:
    used = next(int(line.split()[1]) for line in file if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + 400_000_000, resource.RLIM_INFINITY))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    x = torch.randn(4_000, 64)
    optimizer.zero_grad()
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
