"""Self-training: a few labels, then rounds of pseudo-labelling on the pool."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
d = load_digits()
X = torch.tensor(d.data / 16.0, dtype=torch.float32)
y = torch.tensor(d.target)
X_pool, X_test, y_pool, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
X_lab, y_lab = X_pool[:100], y_pool[:100]
X_unl = X_pool[100:]  # labels of the pool are not used

unl_loader = DataLoader(TensorDataset(X_unl), batch_size=128, shuffle=False)


def new_model():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))


def fit(model, x, t, epochs):
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    model.train()
    for _ in range(epochs):
        total = 0.0
        for xb, tb in DataLoader(TensorDataset(x, t), batch_size=64, shuffle=True):
            opt.zero_grad()
            loss = loss_fn(model(xb), tb)
            loss.backward()
            opt.step()
            total += loss.item() * len(xb)
    return total / len(x)


@torch.no_grad()
def pseudo_labels(model, thr=0.9):
    model.eval()
    probs = torch.cat([model(xb).softmax(1) for (xb,) in unl_loader])
    conf, lab = probs.max(1)
    keep = conf > thr
    return X_unl[keep], lab[keep]


@torch.no_grad()
def test_acc(model):
    model.eval()
    return (model(X_test).argmax(1) == y_test).float().mean().item()


model = new_model()
loss = fit(model, X_lab, y_lab, 60)
print(f"supervised only: loss {loss:.4f} acc {test_acc(model):.4f}")
for r in range(3):
    xp, tp = pseudo_labels(model)
    loss = fit(model, torch.cat([X_lab, xp]), torch.cat([y_lab, tp]), 4)
    print(f"round {r + 1}: {len(xp)} pseudo-labels, loss {loss:.4f} acc {test_acc(model):.4f}")
print(f"final test accuracy {test_acc(model):.4f}")
