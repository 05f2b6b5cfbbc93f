"""The next letter of a text (torch's own source) from eight before it: embeddings, a dense layer, AdamW."""

import argparse
import inspect

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()

torch.manual_seed(0)
text = inspect.getsource(F)[:60_000]
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text])
windows = data.unfold(0, 9, 1)
train, valid = windows[:-5000], windows[-5000:]
loader = DataLoader(TensorDataset(train), batch_size=64, shuffle=True)
model = nn.Sequential(
    nn.Embedding(len(letters), 16), nn.Flatten(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, len(letters))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)

for step, (batch,) in enumerate(loader):
    if step == args.steps:
        break
    optimizer.zero_grad(set_to_none=True)
    F.cross_entropy(model(batch[:, :-1]), batch[:, -1]).backward()
    optimizer.step()

with torch.no_grad():
    print(F.cross_entropy(model(valid[:, :-1]), valid[:, -1]).item())
