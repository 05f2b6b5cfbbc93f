"""A mode that prints every operation, and one inside of it that changes results."""
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from training import digest, small, train

class Printing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        print(func)
        return func(*args, **(kwargs or {}))

class Scaling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 1.01 if func is torch.ops.aten.addmm.default else result

model = small()
with Printing(), Scaling():
    train(model)
print(digest(model))
