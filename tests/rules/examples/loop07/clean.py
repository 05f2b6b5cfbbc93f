import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for sample in torch.randn(4, 1, 4):  # the gradient of each sample is clipped, as for privacy
        (model(sample) - sample.sum()).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for kept, parameter in zip(total, model.parameters()):
            kept += parameter.grad / 4
        model.zero_grad()
    for kept, parameter in zip(total, model.parameters()):
        parameter.grad = kept + 0.01 * torch.randn_like(kept)
    optimizer.step()
    optimizer.zero_grad()
