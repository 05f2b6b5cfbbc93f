"""Autograd functions of the script's own: old and new style, differentiable once and twice."""
import torch
from torch.autograd.function import Function, once_differentiable
from training import digest

class Old(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale, ctx.needs = scale, ctx.needs_input_grad
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        return x.exp() * scale, x.detach()
    @staticmethod
    @once_differentiable
    def backward(ctx, first, second):
        print("old", ctx.needs, second is None, torch.is_grad_enabled())
        (x,) = ctx.saved_tensors
        return first * x.exp() * ctx.scale, None

class New(Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x):
        return x.pow(3)
    @staticmethod
    def setup_context(ctx, inputs, output):
        print("setup", len(inputs))
        ctx.save_for_backward(*inputs)
    @staticmethod
    def backward(ctx, gradient):
        print("new", gradient.requires_grad)
        (x,) = ctx.saved_tensors
        return 3 * x.pow(2) * gradient
    @staticmethod
    def jvp(ctx, tangent):
        return tangent * 3

class Model(torch.nn.Linear):
    def forward(self, x):
        return New.apply(Old.apply(super().forward(x), 0.1)[0])

torch.manual_seed(0)
model = Model(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(9):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
x = torch.ones(3, requires_grad=True)
(gradient,) = torch.autograd.grad(New.apply(x).sum(), x, create_graph=True)
gradient.sum().backward()
print(x.grad, torch.func.vmap(torch.func.grad(lambda z: New.apply(z).sum()))(torch.ones(2, 3)), digest(model))
print(Old.apply(x, 2.0)[0].grad_fn.name(), isinstance(Old.apply(x, 2.0)[0].grad_fn, Old._backward_cls), Old._backward_cls.__mro__[1].__name__)
