import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

np.random.seed(0)
torch.manual_seed(0)

# three species, 150 flowers each, written one species after another
means = np.array([[5.0, 3.4, 1.5, 0.2], [5.9, 2.8, 4.3, 1.3], [6.6, 3.0, 5.6, 2.0]])
features = np.concatenate([np.random.normal(m, 0.35, size=(150, 4)) for m in means]).astype(np.float32)
species = np.repeat(np.arange(3), 150)
features = (features - features.mean(0)) / features.std(0)

test = np.arange(len(features)) % 5 == 0
X = torch.from_numpy(features[~test])
y = torch.from_numpy(species[~test])
X_test = torch.from_numpy(features[test])
y_test = torch.from_numpy(species[test])

model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
batch_size = 20

for epoch in range(15):
    epoch_loss = 0.0
    for start in range(0, len(X), batch_size):
        xb = X[start:start + batch_size]  # expect: DATA04
        yb = y[start:start + batch_size]  # expect: DATA04
        logits = model(xb)
        loss = F.cross_entropy(logits, yb)  # expect: DATA04
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() * len(xb)
    if epoch % 5 == 4:
        model.eval()
        with torch.no_grad():
            accuracy = (model(X_test).argmax(1) == y_test).float().mean()
        model.train()
        print(f"{epoch + 1:3d} loss {epoch_loss / len(X):.3f} test accuracy {accuracy.item():.3f}")
