"""A mode that prints every function of torch that is called."""
import torch
from training import small, train

class Printing(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        print(getattr(func, "__name__", func))
        return func(*args, **(kwargs or {}))

model = small()
with Printing():
    train(model)
