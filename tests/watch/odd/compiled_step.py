"""A compiled function that runs the model, hooks and all, through AOTAutograd."""
# slow: the compiler is imported
import torch
from training import batches, digest, small

model = small()
model[0].register_forward_hook(lambda module, args, out: out * 1.5)

@torch.compile(backend="aot_eager", fullgraph=True)
def step(x, y):
    return torch.nn.functional.cross_entropy(model(x), y)

optimizer = torch.optim.AdamW(model.parameters())
for x, y in batches():
    optimizer.zero_grad()
    step(x, y).backward()
    optimizer.step()
print(digest(model), dict(torch._dynamo.utils.counters["stats"]), torch._dynamo.utils.counters["graph_break"])
