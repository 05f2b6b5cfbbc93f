"""A preconditioner whose factors lie in dictionaries with modules and parameters as keys."""

import torch
from torch import nn


class Preconditioned(torch.optim.Optimizer):
    def __init__(self, model, lr):
        super().__init__(model.parameters(), {"lr": lr})
        self.inputs, self.steps = {}, 0
        for module in model:
            if isinstance(module, nn.Linear):
                self.inputs[module] = torch.eye(module.in_features)
                module.register_forward_pre_hook(self.note)

    def note(self, module, given):
        x = given[0].detach()
        self.inputs[module] = 0.9 * self.inputs[module] + 0.1 * x.T @ x / len(x)

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for module, factor in self.inputs.items():
            damped = factor + 0.1 * torch.eye(len(factor))
            module.weight -= self.param_groups[0]["lr"] * torch.linalg.solve(damped, module.weight.grad.T).T
            self.state["traces"][module] = factor.diagonal().clone()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
optimizer = Preconditioned(model, lr=0.05)
spread = {item: torch.zeros_like(item) for item in model.parameters()}
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    for item, value in spread.items():
        value.add_(item.grad.square())
    # plant 0-3 large: optimizer.inputs[model[0]] | optimizer.inputs[model[2]]
    # plant 3-3: optimizer.state["traces"][model[2]] | optimizer.state["traces"][model[0]]
    # plant 0-3: spread[model[0].weight] | spread[model[2].weight] | spread[model[2].bias] | model[0].bias
