import os
import tempfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    for name in {"red", "green", "blue"}:
        Path(folder, name).touch()
    words = sorted(os.listdir(folder))
    known = set(words)
    print(len(os.listdir(folder)), "red" in known)
texts = ["red green blue", "green red red"]
ids = torch.tensor([[words.index(word) for word in text.split()] for text in texts])
model = nn.Sequential(nn.Embedding(3, 4), nn.Flatten(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = model(ids).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
