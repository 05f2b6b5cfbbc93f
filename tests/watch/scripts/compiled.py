"""A compiled model: graphs and breaks are counted."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(self.body(x))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model)
for _ in range(3):
    optimizer.zero_grad()
    loss = compiled(torch.ones(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
counters = torch._dynamo.utils.counters
print(dict(counters["stats"]), dict(counters["graph_break"]))
print("digest", [float(value.sum()).hex() for value in model.state_dict().values()])
