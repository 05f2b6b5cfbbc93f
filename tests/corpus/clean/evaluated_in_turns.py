"""Two models that are evaluated without gradients and in inference mode, in turns, with other work between."""

import torch
from torch import nn

torch.manual_seed(2)
x = torch.randn(256, 6)
y = (x.sum(1) > 0).long()
models = [nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)) for _ in range(3)]
optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in models]
smooth = nn.Sequential(*(nn.Tanh() for _ in range(4200)))


def accuracy(model: nn.Module) -> float:
    model.eval()
    share = (model(x[160:]).argmax(1) == y[160:]).float().mean().item()
    model.train()
    return share


for epoch in range(2):
    order = torch.randperm(160)
    for rows in order.split(32):
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        if not epoch and rows[0] == order[0]:  # after the first step
            with torch.inference_mode():
                torch.stack([smooth(x[:2]), smooth(x[2:4])])
            torch.empty(2).fill_(0.5)
    first, second, third = models
    shares = []
    with torch.inference_mode():
        shares.append(accuracy(first))
    with torch.inference_mode():
        shares.append(accuracy(first))
    shares.append(torch.empty(2).fill_(0.5).mean().item())
    with torch.no_grad():
        shares.append(accuracy(second))
        with torch.inference_mode():
            shares.append(accuracy(second))
        shares.append(torch.empty(2).fill_(0.5).mean().item())
    with torch.no_grad():
        shares.append(accuracy(third))
    with torch.inference_mode():
        shares += [accuracy(third), accuracy(first)]
    shares.append(torch.empty(2).fill_(0.5).mean().item())
    print(*(f"{share:.3f}" for share in shares))
