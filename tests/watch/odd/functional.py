"""Gradients of functions: grad, vmap, jvp, jacrev, hessian, functional_call, stacked models."""
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacrev, jvp, stack_module_state, vmap
from training import batches, digest, small

model = small().eval()
weights = dict(model.named_parameters())

def loss_of(weights, x, y):
    return nn.functional.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches():
    each, losses = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0))(weights, x, y)
    for name, item in weights.items():
        item.grad = each[name].mean(0)
    optimizer.step()
    print(losses.sum().item())
print(jvp(model, (x,), (torch.ones_like(x),))[1].sum().item())
print(jacrev(model)(x[0]).sum().item(), hessian(lambda z: model(z).pow(2).sum())(x[0]).sum().item())
models = [nn.Linear(4, 2) for _ in range(3)]
state, buffers = stack_module_state(models)
print(vmap(lambda w, b, z: functional_call(models[0], (w, b), (z,)), in_dims=(0, 0, None))(state, buffers, x).sum().item())
print(grad(lambda z: model(z).sum())(x).sum().item(), digest(model))
