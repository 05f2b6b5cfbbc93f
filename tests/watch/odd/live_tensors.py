"""How many tensors are alive after each step, as people count them when memory grows."""
import gc
import torch
from training import batches, digest, small

model = small()
optimizer = torch.optim.AdamW(model.parameters())
for x, y in batches():
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects()))
print(digest(model))
