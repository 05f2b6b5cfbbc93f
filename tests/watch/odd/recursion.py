"""A model that calls itself for each level of a tree, and a recursion without end."""
import sys
import torch
from torch import nn
from training import digest

class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
    def forward(self, x, depth):
        return torch.tanh(self.inner(x if depth == 0 else self(x, depth - 1)))

class Endless(nn.Module):
    def forward(self, x):
        return self(x)

torch.manual_seed(0)
model = Tree()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    optimizer.zero_grad()
    model(torch.ones(2, 3), 100).sum().backward()
    optimizer.step()
try:
    Endless()(torch.ones(1))
except RecursionError as error:
    print(type(error).__name__)
print(sys.getrecursionlimit(), digest(model))
