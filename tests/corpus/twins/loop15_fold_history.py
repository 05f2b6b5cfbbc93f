"""K-fold cross validation; the history is a dict of lists."""
from collections import defaultdict

import torch
from torch import nn


def fit(x, y, history, fold):
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(4):
        for idx in torch.randperm(len(x)).split(16):
            out = model(x[idx])
            losses = {"mse": nn.functional.mse_loss(out, y[idx]), "l1": nn.functional.l1_loss(out, y[idx])}
            loss = losses["mse"] + 0.1 * losses["l1"]
            opt.zero_grad()
            loss.backward()
            opt.step()
            for k, v in losses.items():
                history[f"{fold}/{k}"].append(v.detach())
    return model


torch.manual_seed(0)
X = torch.randn(160, 5)
Y = X.abs().sum(1, keepdim=True)
history = defaultdict(list)
scores = []
for fold in range(4):
    mask = torch.arange(160) % 4 == fold
    model = fit(X[~mask], Y[~mask], history, fold).eval()
    with torch.no_grad():
        scores.append(nn.functional.mse_loss(model(X[mask]), Y[mask]).item())
print(scores, {k: float(sum(v) / len(v)) for k, v in history.items()})
