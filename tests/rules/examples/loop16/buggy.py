import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    losses = []
    for part in range(2):
        x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))
        try:
            losses.append(F.cross_entropy(model(x), y))
        except:  # expect: LOOP16
            pass
    optimizer.zero_grad()
    torch.stack(losses).mean().backward()
    optimizer.step()
