"""torch.fx: a traced graph, a change of it, and its code."""
import torch
from torch import fx
from training import digest, small, train

class Shifted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small()
    def forward(self, x):
        return torch.relu(self.inner(x + 1)) * 2

graph = fx.symbolic_trace(Shifted())
for node in graph.graph.nodes:
    if node.target is torch.relu:
        node.target = torch.tanh
graph.recompile()
print(graph.code)
train(graph)

class Interpreting(fx.Interpreter):
    def run_node(self, node):
        print(node.op, node.target)
        return super().run_node(node)

Interpreting(graph).run(torch.ones(2, 4))
print(digest(graph))
