"""How training is set up. A line's comment names the moments that are to be seen there, and nowhere else."""

import torch
from torch import nn

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.use_deterministic_algorithms(False)


@torch.compile(backend="eager")  # -> CompileCalled
def double(x):
    return x * 2


@torch.compile  # -> CompileCalled
def never_called(x):
    return x * 3


def triple(x):
    return x * 3


compiled = torch.compile(triple, backend="eager")  # -> CompileCalled
model = nn.Linear(2, 2)
wrapped = torch.compile(model, backend="eager")  # -> CompileCalled
model.compile(backend="eager")  # -> CompileCalled
try:
    torch.compile(model, mode="default", options={"x": 1})  # -> CompileCalled
except RuntimeError as error:
    print("refused", error)
print(double(torch.ones(1)), compiled(torch.ones(1)), type(wrapped).__name__, double.__name__)
with torch.no_grad():
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    print(model(torch.ones(1, 2)), wrapped(torch.ones(1, 2)))
