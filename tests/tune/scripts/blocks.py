"""A stack of blocks, evaluated before and between epochs, by somebody who sets everything by hand."""

import torch
import torch.nn.functional as F
from telling import Probe, tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(16, 32), nn.Linear(32, 16), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.down(F.relu(self.up(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return {"logits": self.last(x)}


torch.manual_seed(7)
torch.set_num_threads(1)
torch.set_float32_matmul_precision("highest")
data = TensorDataset(torch.randn(48, 4), torch.randint(0, 3, (48,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
valid_loader = DataLoader(data, batch_size=8)
model = Net()
probe = Probe(model.blocks[0].up)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
dtypes, scores = set(), []


def evaluate():
    model.eval()
    with torch.no_grad():
        for x, y in valid_loader:
            logits = model(x)["logits"]
            logits -= logits.mean()  # in place, as people do
            scores.append(float(F.cross_entropy(logits, y)))
    model.train()


evaluate()
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        logits = model(x=x)["logits"]
        dtypes.add(str(logits.dtype))
        F.cross_entropy(logits, y).backward()
        optimizer.step()
    evaluate()
tell(
    [model],
    [optimizer],
    [loader, valid_loader],
    [probe],
    outputs=sorted(dtypes),
    scores=[score.hex() for score in scores],
)
