"""Names, signatures, modules and types of what torch offers."""
import inspect, os, random, types
import numpy
import torch
from torch import nn
from training import small, train

names = """torch.optim.SGD.step torch.optim.Adam.step torch.optim.Optimizer.zero_grad torch.nn.Module.__call__ torch.nn.Module.train torch.nn.Module.zero_grad
torch.nn.Module.load_state_dict torch.nn.Module.state_dict torch.nn.Linear.forward torch.Tensor.backward torch.Tensor.item torch.Tensor.to torch.autograd.backward torch.autograd.grad
torch.save torch.load torch.compile torch.manual_seed torch.seed torch.set_rng_state torch.relu torch.nn.functional.cross_entropy
torch.nn.utils.clip_grad_norm_ torch.nn.utils.clip_grad_value_ torch.utils.data.DataLoader.__iter__ torch.utils.data.DataLoader.__init__ torch.amp.GradScaler.unscale_ torch.amp.GradScaler.step
torch.optim.lr_scheduler.LRScheduler.step torch.optim.lr_scheduler.StepLR.step torch.nn.parallel.DistributedDataParallel.__init__ torch.distributed.init_process_group
torch.nn.CrossEntropyLoss.forward torch.Tensor.cpu torch.Tensor.numpy torch.Tensor.tolist torch.nn.Module.register_buffer torch.nn.init.kaiming_uniform_""".split()

def show(name):
    owner, _, last = name.rpartition(".")
    item = eval(name)
    try:
        signature = str(inspect.signature(item))
    except ValueError:
        signature = "none"
    try:
        lines = inspect.getsourcelines(item)[1]
    except TypeError:
        lines = "none"
    print(name, item.__name__, item.__qualname__, getattr(item, "__module__", None), type(item).__name__, signature, lines, (item.__doc__ or "")[:30], callable(item))

model = small()
train(model)
for name in names:
    show(name)
loss = model(torch.ones(2, 4)).sum()
print(type(loss.backward), type(model.train), type(model.__call__), nn.Linear.forward is nn.Linear.__dict__["forward"], "__call__" in vars(nn.Module))
print(inspect.ismethod(model.zero_grad), inspect.isfunction(nn.Module.train), inspect.iscoroutinefunction(nn.Module.train), isinstance(torch.save, types.FunctionType))
print(torch.optim.SGD.step.__get__(1).__self__, isinstance(random.random, types.FunctionType), callable(os.listdir), repr(random.seed)[:20])
