"""Message passing on a random graph: scatter and index_add."""

import torch
from torch import nn


class Messages(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.Linear(2 * width, width)

    def forward(self, x, source, target):
        sent = torch.relu(self.message(torch.cat((x[source], x[target]), dim=1)))
        total = torch.zeros_like(x).index_add(0, target, sent)
        peak = torch.full_like(x, -1.0).scatter_reduce(0, target[:, None].expand_as(sent), sent, "amax")
        return x + torch.tanh(self.update(torch.cat((total, peak), dim=1)))


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(5, 12)
        self.layers = nn.ModuleList([Messages(12), Messages(12)])
        self.head = nn.Linear(12, 1)

    def forward(self, x, edges):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, edges[0], edges[1])
        return self.head(x)


torch.manual_seed(7)
model = GraphNet()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
nodes, edges = torch.randn(30, 5), torch.randint(0, 30, (2, 90))
target = torch.zeros(30, 1).index_add(0, edges[1], nodes[edges[0], :1])
for step in range(4):
    loss = nn.functional.smooth_l1_loss(model(nodes, edges), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
