import torch
from torch import nn

torch.manual_seed(0)
images = torch.randint(0, 256, (192, 1, 8, 8)).float()
labels = (images.mean((1, 2, 3)) > 127).long()
train, test = images[:128] / 255, images[128:]
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for rows in torch.randperm(128).split(32):
        loss = nn.functional.cross_entropy(model(train[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    scores = model(test)  # expect: DATA16
print("accuracy", (scores.argmax(1) == labels[128:]).float().mean().item())
