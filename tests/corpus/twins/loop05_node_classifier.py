"""Node classification on a synthetic community graph with a two-layer graph convolution."""

import logging
import sys

import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
log = logging.getLogger("nodes")


def community_graph(nodes, communities, features, generator):
    labels = torch.randint(communities, (nodes,), generator=generator)
    same = labels[:, None] == labels[None, :]
    chance = torch.where(same, 0.06, 0.01)
    edges = torch.rand(nodes, nodes, generator=generator) < chance
    adjacency = (edges | edges.T).float()
    adjacency.fill_diagonal_(1.0)
    degree = adjacency.sum(1)
    adjacency = adjacency / (degree[:, None] * degree[None, :]).sqrt()
    x = torch.randn(nodes, features, generator=generator)
    x[:, :communities] += 0.8 * nn.functional.one_hot(labels, communities).float()
    return adjacency, x, labels


class GraphConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)

    def forward(self, adjacency, x):
        return adjacency @ self.linear(x)


class GCN(nn.Module):
    def __init__(self, n_in, hidden, n_out):
        super().__init__()
        self.first = GraphConv(n_in, hidden)
        self.second = GraphConv(hidden, n_out)
        self.dropout = nn.Dropout(0.3)

    def forward(self, adjacency, x):
        h = self.dropout(torch.relu(self.first(adjacency, x)))
        return self.second(adjacency, h)


def update(model, optimizer, loss, max_grad_norm):
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()


def fit(epochs=60, max_grad_norm=0.1):
    torch.manual_seed(5)
    adjacency, x, labels = community_graph(400, 5, 16, torch.Generator().manual_seed(5))
    order = torch.randperm(len(labels))
    train, valid = order[:200], order[200:]
    model = GCN(x.shape[1], 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        logits = model(adjacency, x)
        loss = criterion(logits[train], labels[train])
        update(model, optimizer, loss, max_grad_norm)
        if epoch % 10 == 9:
            model.eval()
            with torch.no_grad():
                guess = model(adjacency, x).argmax(1)
            accuracy = (guess[valid] == labels[valid]).float().mean().item()
            log.info("epoch %d: loss %.3f, accuracy %.3f", epoch + 1, loss.item(), accuracy)


if __name__ == "__main__":
    fit()
