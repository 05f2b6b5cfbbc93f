"""Classes of the script's own whose methods print: nobody but the script and torch calls them."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from training import digest

def counted(*names):
    def add(kind):
        for name in names:
            def method(self, *args, _name=name, **kwargs):
                print(kind.__name__, _name)
                return getattr(super(kind, self), _name)(*args, **kwargs)
            setattr(kind, name, method)
        return kind
    return add

@counted("parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children", "named_children",
         "state_dict", "train", "zero_grad", "requires_grad_", "__repr__", "__dir__", "extra_repr", "_get_name")
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.register_buffer("scale", torch.ones(1))
    def __len__(self): print("len"); return 0
    def __bool__(self): print("bool"); return False
    def __eq__(self, other): print("eq"); return self is other
    def __hash__(self): return id(self)
    def __deepcopy__(self, memo): print("copied"); raise TypeError
    def __getstate__(self): print("state"); raise TypeError
    def get_extra_state(self): print("extra"); return 1
    def set_extra_state(self, state): pass
    def __getattr__(self, name):
        if name not in ("inner", "scale"): print("asked for", name)
        return super().__getattr__(name)
    def forward(self, x): return self.inner(x) * self.scale

class Rows(Dataset):
    def __init__(self): self.x, self.y = torch.randn(36, 4), torch.randint(0, 3, (36,))
    def __len__(self): print("length of rows"); return 36
    def __getitem__(self, index): print("row", index); return self.x[index], self.y[index]
    def __getattr__(self, name): print("rows asked for", name); raise AttributeError(name)

class Order(Sampler):
    def __init__(self, data): self.data = data
    def __len__(self): print("length of order"); return 36
    def __iter__(self): print("order"); return iter(range(36))

@counted("state_dict", "zero_grad", "add_param_group", "__repr__", "__getstate__")
class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        print("step")
        return super().step(closure)

@counted("get_lr", "state_dict", "get_last_lr", "_get_closed_form_lr")
class Scheduler(torch.optim.lr_scheduler.StepLR):
    pass

torch.manual_seed(0)
model = Model()
optimizer = Optimizer(model.parameters(), lr=0.1, momentum=0.9)
scheduler = Scheduler(optimizer, 3)
data = Rows()
for x, y in DataLoader(data, 4, sampler=Order(data)):
    print("begin")
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.inner.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
model.eval()
model(x)
print("state", len(model.state_dict()), len(optimizer.state_dict()))
print(digest(model.inner))
