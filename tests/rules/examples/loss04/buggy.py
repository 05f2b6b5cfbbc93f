import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x = torch.randn(16, 8)
    log_probability = torch.log_softmax(model(x), dim=0)  # expect: LOSS04
    loss = nn.functional.nll_loss(log_probability, x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
