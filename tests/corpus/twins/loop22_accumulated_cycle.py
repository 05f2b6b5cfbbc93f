"""The same task with one cycle, four micro-batches per step."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(23)
x = torch.randn(640, 16)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
EPOCHS, ACCUM = 4, 4
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
sched = torch.optim.lr_scheduler.OneCycleLR(
    opt, max_lr=0.3, epochs=EPOCHS, steps_per_epoch=len(loader) // ACCUM
)
for epoch in range(EPOCHS):
    for i, (xb, yb) in enumerate(loader):
        (F.cross_entropy(net(xb), yb) / ACCUM).backward()
        if (i + 1) % ACCUM == 0:
            opt.step()
            sched.step()
            opt.zero_grad()
