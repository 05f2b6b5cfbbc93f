"""Hooks of all kinds that change what they are given, and print the order in which they run."""
import torch
from torch import nn
from training import batches, digest, small

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small()
    def forward(self, x, *, scale=1.0):
        return self.inner(x) * scale

def say(name, result=None):
    def hook(*args, **kwargs):
        print(name, len(args), sorted(kwargs))
        return result(*args, **kwargs) if result else None
    return hook

model = Scaled()
model.register_forward_pre_hook(say("pre", lambda module, args, kwargs: (args, {**kwargs, "scale": 2.0})), with_kwargs=True)
model.register_forward_hook(say("after", lambda module, args, kwargs, out: out + 0.5), with_kwargs=True, always_call=True)
model.inner.register_forward_pre_hook(say("inner", lambda module, args: (args[0] * 0.9,)))
model.inner[0].register_full_backward_hook(say("backward", lambda module, before, after: None))
model.inner[3].register_full_backward_pre_hook(say("backward pre", lambda module, after: (after[0] * 1.1,)))
model.inner[0].weight.register_hook(say("gradient", lambda gradient: gradient * 0.5))
model.inner[3].bias.register_post_accumulate_grad_hook(say("accumulated"))
model._register_state_dict_hook(say("state"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.register_step_pre_hook(say("before step"))
optimizer.register_step_post_hook(say("after step"))
optimizer.register_state_dict_post_hook(say("optimizer state"))
for x, y in batches():
    optimizer.zero_grad()
    out = model(x)
    out.register_hook(say("out"))
    nn.functional.cross_entropy(out, y).backward()
    optimizer.step()
optimizer.state_dict()
print(digest(model))
