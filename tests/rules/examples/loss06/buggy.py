import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x = torch.randn(16, 8)
    scores, target = model(x), x[:, :3].argmax(1)
    loss = F.cross_entropy(scores, target)
    wrong = (scores.argmax(1) != target).float()  # expect: LOSS06
    loss = loss + 0.5 * wrong.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
