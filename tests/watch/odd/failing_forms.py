"""Errors of many kinds in the first steps, and the frames that each of them shows."""
import traceback
import torch
from torch import nn
from training import batches, small, train

class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, gradient): raise ValueError("in backward")

def twice():
    loss = model(x).sum()
    loss.backward()
    loss.backward()

def in_hook():
    handle = model.register_forward_hook(lambda *_: 1 / 0)
    try:
        model(x)
    finally:
        handle.remove()

def closure():
    def fail(): raise KeyError("closure")
    optimizer.step(fail)

model = small()
x, y = next(iter(batches()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
parts = {
    "shape": lambda: torch.ones(3) + torch.ones(4),
    "method": lambda: x.view(7, 7),
    "function": lambda: nn.functional.linear(x, torch.ones(2, 2)),
    "matrix": lambda: x @ x,
    "twice": twice,
    "backward": lambda: Own.apply(model(x)).sum().backward(),
    "hook": in_hook,
    "closure": closure,
    "no gradient": lambda: torch.ones(2).sum().backward(),
    "unused": lambda: torch.autograd.grad(model(x).sum(), torch.ones(1, requires_grad=True)),
    "loading": lambda: model.load_state_dict({}),
    "file": lambda: torch.load("none.pt"),
    "optimizer": lambda: torch.optim.SGD([], lr=0.1),
    "clipping": lambda: nn.utils.clip_grad_norm_([torch.ones(1)], 1.0, norm_type="x", error_if_nonfinite=True),
    "rate": lambda: torch.optim.SGD(model.parameters(), lr=-1.0),
    "in place": lambda: model[0].weight.add_(1),
    "seed": lambda: torch.manual_seed("x"),
    "loader": lambda: next(iter(torch.utils.data.DataLoader([1, "a"], 2))),
    "attribute": lambda: model.nothing,
    "index": lambda: x[20],
    "list": lambda: __import__("os").listdir("nowhere"),
}
for name, part in parts.items():
    try:
        part()
        print(name, "none")
    except Exception as error:
        print(name, "".join(traceback.format_exception(error)))
train(model)
