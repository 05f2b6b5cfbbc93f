"""No DataLoader anywhere: batches are slices of one tensor, the validation set is scored in one piece."""

import torch
from torch import nn

torch.manual_seed(139)

x = torch.randn(1500, 12)
w = torch.randn(12, 3)
y = (x @ w + 0.3 * torch.randn(1500, 3)).argmax(dim=1)
n_train = 1200
mean, std = x[:n_train].mean(dim=0), x[:n_train].std(dim=0)
x = (x - mean) / std

model = nn.Sequential(nn.Linear(12, 64), nn.Dropout(0.1), nn.GELU(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.3)
criterion = nn.CrossEntropyLoss()

best, patience, bad, epoch = float("inf"), 3, 0, 0
while True:
    model.train()
    shuffled = torch.randperm(n_train)
    running = 0.0
    for i in range(0, n_train, 100):
        rows = shuffled[i : i + 100]
        loss = criterion(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item() * len(rows)
    scheduler.step()

    model.eval()
    with torch.no_grad():
        logits = model(x[n_train:])
        val_loss = criterion(logits, y[n_train:]).item()
        accuracy = (logits.argmax(dim=1) == y[n_train:]).float().mean().item()
    print(f"epoch {epoch}: train {running / n_train:.3f} validation {val_loss:.3f} accuracy {accuracy:.3f}")

    bad = 0 if val_loss < best else bad + 1
    best = min(best, val_loss)
    epoch += 1
    if bad >= patience or epoch == 9:
        break
print(f"stopped after {epoch} epochs, best validation loss {best:.3f}")
