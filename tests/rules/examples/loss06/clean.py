import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model, decode = nn.Linear(8, 8), nn.Linear(8, 8)
optimizer = torch.optim.Adam([*model.parameters(), *decode.parameters()])
for step in range(4):
    x = torch.randn(16, 8)
    code = model(x)
    hard = code + (torch.sign(code) - code).detach()
    accuracy = (code.argmax(1) == x.argmax(1)).float().mean()
    pseudo = F.cross_entropy(code, code.argmax(1))
    loss = F.mse_loss(decode(hard), x) + 0.1 * (1 - accuracy) * pseudo
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
