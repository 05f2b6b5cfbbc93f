"""Semi-supervised nodes of one graph: all nodes go in, masks pick who is scored."""
import torch
from torch import nn
from torch.nn import functional as F


class GCN(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, classes)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x, adjacency):
        h = torch.relu(adjacency @ self.first(x))
        return adjacency @ self.second(self.dropout(h))


def accuracy(scores, labels):
    return (scores.argmax(1) == labels).float().mean().item()


torch.manual_seed(0)
n = 120
labels = torch.randint(0, 3, (n,))
x = torch.randn(n, 16) + F.one_hot(labels, 16)
links = ((labels[:, None] == labels) & (torch.rand(n, n) < 0.1)) | torch.eye(n, dtype=torch.bool)
links = (links | links.T).float()
adjacency = links / links.sum(1, keepdim=True)
order = torch.randperm(n)
idx_train, idx_val, idx_test = order[:40], order[40:80], order[80:]
model = GCN(16, 32, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(20):
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x, adjacency)[idx_train], labels[idx_train])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        score = accuracy(model(x, adjacency)[idx_val], labels[idx_val])
    if epoch % 5 == 4:
        print(epoch, loss.item(), score)
with torch.no_grad():
    print("test", accuracy(model(x, adjacency)[idx_test], labels[idx_test]))
