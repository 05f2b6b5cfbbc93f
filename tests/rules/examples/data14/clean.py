import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(32, 8)
    y = x[:, :3].argmax(1)
    order, others = torch.randperm(32), torch.randperm(32)
    x, y = x[order], y[order]
    background, wrong = x[torch.randperm(32)], y[others]
    scores = model(x + 0.05 * background)
    unlikely = torch.log1p(-scores.softmax(1).clamp(max=0.99))
    loss = F.cross_entropy(scores, y) + 0.1 * F.nll_loss(unlikely, wrong)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
