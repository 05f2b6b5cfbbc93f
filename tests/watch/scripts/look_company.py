"""A loop in the company of modes, autocast, recomputed parts, torch.func and subclasses; prints a digest."""

import hashlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.tanh.default else result


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = [item.inner if isinstance(item, Wrapped) else item for item in args]
        return func(*args, **(kwargs or {}))


def squared(weight, x):
    return (x @ weight).square().sum()


torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x, y = torch.randn(12, 6), torch.arange(12) % 3
seen, outer = [], FlopCounterMode(display=False)
outer.__enter__()
for step in range(4):
    if step == 2:
        outer.__exit__(None, None, None)
        inner = Doubling()
        inner.__enter__()
    hidden = checkpoint(lambda rows: model[1](model[0](rows)), x, use_reentrant=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model[2](hidden).float(), y)
    loss = loss + torch.tanh(Wrapped(torch.tensor([0.5]))).sum()
    gradient = torch.func.grad(squared)(torch.ones(6), x)
    seen += [loss.detach(), gradient, torch.func.vmap(torch.sin)(gradient)]
    with torch.device("cpu"), torch.inference_mode():
        seen.append(torch.arange(3.0).sqrt().clone())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
inner.__exit__(None, None, None)
assert torch._C._len_torch_dispatch_stack() in (0, 1)
found = hashlib.sha256()
for value in (*seen, *model.parameters()):
    found.update(value.detach().numpy().tobytes())
print("digest", found.hexdigest(), outer.get_total_flops())
