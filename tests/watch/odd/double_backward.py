"""Gradients of gradients: a penalty, autograd.grad, allow_unused, retained and created graphs."""
import torch
from torch import nn
from training import batches, digest, small

model = small()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches():
    x.requires_grad_()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + gradient.pow(2).sum()).backward()
    optimizer.step()
    extra = torch.ones(1, requires_grad=True)
    print(torch.autograd.grad(model(x).sum(), [x, extra], allow_unused=True)[1], x.grad.sum().item())
    total = model(x).sum()
    total.backward(retain_graph=True, inputs=[model[0].weight])
    total.backward()
print(digest(model), torch.autograd.functional.hessian(lambda z: model(z).pow(2).sum(), x[:1]).sum().item())
