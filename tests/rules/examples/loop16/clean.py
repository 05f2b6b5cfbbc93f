import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
failed = 0
for step in range(6):
    x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))
    optimizer.zero_grad()
    try:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
    except torch.OutOfMemoryError:
        failed += 1
        continue
    optimizer.step()
    try:
        print(step, loss.item(), file=None)
    except Exception:
        pass
