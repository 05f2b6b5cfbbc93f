"""Mixed digits, and an averaged model whose statistics are estimated at the end."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

torch.manual_seed(13)
np.random.seed(13)
X, y = load_digits(return_X_y=True)
Xtr, Xva, ytr, yva = train_test_split((X / 16).astype(np.float32), y, test_size=0.25, random_state=0)
Xtr, Xva, ytr, yva = map(torch.from_numpy, (Xtr, Xva, ytr, yva))

net = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 10))
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)
swa = torch.optim.swa_utils.AveragedModel(net)


def mixup(x, y):
    lam = float(np.random.beta(0.4, 0.4))
    j = torch.randperm(len(x))
    return lam * x + (1 - lam) * x[j], y, y[j], lam


EPOCHS = 4
for epoch in range(EPOCHS):
    net.train()
    total = 0.0
    for idx in torch.randperm(len(Xtr)).split(64):
        x, ya, yb, lam = mixup(Xtr[idx], ytr[idx])
        out = net(x)
        loss = lam * loss_fn(out, ya) + (1 - lam) * loss_fn(out, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(idx)
    if epoch >= EPOCHS - 3:
        swa.update_parameters(net)
    if epoch % 4 == 3:
        net.eval()
        with torch.no_grad():
            acc = (net(Xva).argmax(1) == yva).float().mean().item()
        print(f"epoch {epoch + 1} mixed loss {total / len(Xtr):.4f} val acc {acc:.4f}")

# the averaged weights need statistics of their own, from clean training data
torch.optim.swa_utils.update_bn((b for b in Xtr.split(64)), swa)
swa.eval()
with torch.no_grad():
    print("averaged model val acc:", (swa(Xva).argmax(1) == yva).float().mean().item())
