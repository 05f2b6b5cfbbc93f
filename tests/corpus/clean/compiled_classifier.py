"""A small classifier through torch.compile (aot_eager): fixed shapes, one graph for training, one for
evaluation.
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(23)

CLASSES, FEATURES, BATCH = 6, 20, 64


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.outer(F.gelu(self.inner(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=48, depth=2):
        super().__init__()
        self.stem = nn.Linear(FEATURES, width)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


def make_data(count, centres):
    label = torch.randint(0, CLASSES, (count,))
    return centres[label] + 1.2 * torch.randn(count, FEATURES), label


centres = torch.randn(CLASSES, FEATURES)
x_train, y_train = make_data(BATCH * 12, centres)
x_val, y_val = make_data(BATCH * 4, centres)

model = Net()
compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(4):
    compiled.train()
    total = 0.0
    for rows in torch.randperm(len(x_train)).split(BATCH):
        loss = F.cross_entropy(compiled(x_train[rows]), y_train[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(rows)

    compiled.eval()
    hits = 0
    with torch.no_grad():
        for x, y in zip(x_val.split(BATCH), y_val.split(BATCH), strict=True):
            hits += (compiled(x).argmax(dim=1) == y).sum().item()
    print(f"epoch {epoch}: loss {total / len(x_train):.3f} accuracy {hits / len(x_val):.3f}")
