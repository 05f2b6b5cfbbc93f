"""Hooks that torch calls for every module and every optimizer."""
import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from training import digest, small, train

calls = []
handles = [
    modules.register_module_forward_pre_hook(lambda module, args: calls.append(("pre", type(module).__name__))),
    modules.register_module_forward_hook(lambda module, args, out: calls.append(("after", type(module).__name__))),
    modules.register_module_full_backward_hook(lambda module, *_: calls.append(("backward", type(module).__name__))),
    optimizers.register_optimizer_step_pre_hook(lambda *_: calls.append("step")),
    optimizers.register_optimizer_step_post_hook(lambda *_: calls.append("stepped")),
    modules.register_module_parameter_registration_hook(lambda module, name, item: calls.append(name)),
    modules.register_module_module_registration_hook(lambda module, name, item: calls.append(name)),
]
model = small()
train(model)
for handle in handles:
    handle.remove()
train(model)
print(len(calls), calls[:40], calls[-3:], digest(model))
