import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)  # expect: LOOP20
x = torch.randn(256, 4)
y = (x[:, 0] > x[:, 1]).long()
best_loss, kept = float("inf"), None
for epoch in range(8):
    for inputs, labels in zip(x.split(64), y.split(64)):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        logits = model(x)
        val_loss = nn.functional.cross_entropy(logits, y).item()
        val_accuracy = (logits.argmax(1) == y).float().mean().item()
    scheduler.step(val_accuracy)
    if val_loss > best_loss:  # expect: LOOP20
        best_loss, kept = val_loss, {name: item.clone() for name, item in model.state_dict().items()}
