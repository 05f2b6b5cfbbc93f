"""A compiled model: how many graphs there are, what is in them, and why they end."""
# slow: the compiler is imported
import torch
from training import batches, digest, small

graphs = []

def backend(graph, inputs):
    graphs.append([str(node.target) for node in graph.graph.nodes])
    return graph.forward

model = small()
compiled = torch.compile(model, backend=backend)

@torch.compile(backend=backend)
def loss_of(out, y):
    loss = torch.nn.functional.cross_entropy(out, y)
    print("a graph ends")
    return loss * 2

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches():
    optimizer.zero_grad()
    loss_of(compiled(x), y).backward()
    optimizer.step()
print(*graphs, sep="\n")
print(dict(torch._dynamo.utils.counters["stats"]), digest(model))
