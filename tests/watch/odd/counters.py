"""torch's own counters: operations by module, and hooks on several gradients at once."""
import torch
from torch.utils.flop_counter import FlopCounterMode
from training import batches, digest, small, train

model = small()
with FlopCounterMode(display=False) as counter:
    train(model)
counts = {name: {str(op): num for op, num in found.items()} for name, found in counter.get_flop_counts().items()}
print(counter.get_total_flops(), sorted(counts.items()))  # its own order is that of a set
calls = []
torch.autograd.graph.register_multi_grad_hook(list(model.parameters()), lambda gradients: calls.append(len(gradients)))
train(model)
print(calls, digest(model))
