"""Optimizers of many kinds: a closure, fused and foreach, one of the script's own, hooks, groups."""
import torch
from torch import nn
from training import batches, digest, small, train

class Sign(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure else None
        for group in self.param_groups:
            for item in group["params"]:
                if item.grad is not None:
                    self.state[item]["steps"] = self.state[item].get("steps", 0) + 1
                    item.add_(item.grad.sign(), alpha=-group["lr"])
        return loss

class Plain:
    """No optimizer of torch's at all."""
    def __init__(self, parameters): self.items = list(parameters)
    def zero_grad(self): [setattr(item, "grad", None) for item in self.items]
    def step(self): [item.data.sub_(item.grad, alpha=0.1) for item in self.items]

for make in (
    lambda items: torch.optim.SGD(items, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    lambda items: torch.optim.AdamW(items, fused=True), lambda items: torch.optim.Adam(items, amsgrad=True, foreach=False),
    lambda items: torch.optim.Adagrad(items), lambda items: torch.optim.RMSprop(items, centered=True), lambda items: torch.optim.Rprop(items),
    lambda items: Sign(items, 0.01), Plain,
):
    model = small()
    train(model, optimizer=make(model.parameters()), num=4)
    print(digest(model))
model, calls = small().eval(), []
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
for x, y in batches(3):
    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss
    print(optimizer.step(closure).item())
print(len(calls), digest(model))
first, second = small(), small()
optimizer = torch.optim.SGD([{"params": first.parameters(), "lr": 0.1}, {"params": second.parameters(), "name": "second"}], lr=0.01)
optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
train(nn.Sequential(first, nn.Linear(3, 4), second), optimizer=optimizer)
print(digest(first, second), [group["lr"] for group in optimizer.param_groups])
