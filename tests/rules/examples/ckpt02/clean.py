import io

import torch
from torch import nn

def train(model, optimizer, steps):
    for step in range(steps):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

torch.manual_seed(0)
file = io.BytesIO()
source = nn.Linear(4, 1)
optimizer = torch.optim.Adam(source.parameters(), lr=0.01)
train(source, optimizer, 3)
torch.save({"model": source.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, file)
file.seek(0)
state = torch.load(file, weights_only=True)
model = nn.Linear(4, 1)
model.load_state_dict(state["model"])
print("fine-tuning from epoch", state["epoch"])
train(model, torch.optim.Adam(model.parameters(), lr=0.001), 3)
