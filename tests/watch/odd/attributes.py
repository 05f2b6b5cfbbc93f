"""What objects have: no attribute, hook or key is added to what belongs to the script."""
import threading
import torch
from torch import nn
from torch.utils.data import DataLoader
from training import batches, digest, small, train

def show(*things):
    for thing in things:
        print(type(thing).__name__, sorted(vars(thing)), [len(v) for v in vars(thing).values() if isinstance(v, (dict, list))])

model = small()
loader = DataLoader([*zip(torch.randn(36, 4), torch.randint(0, 3, (36,)))], 4)
optimizer = torch.optim.Adam(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
thread = threading.Thread(target=train, args=(small(),))
thread.start()
thread.join()
iterator = iter(loader)
for x, y in iterator:
    optimizer.zero_grad()
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(vars(x), vars(loss), x._version, model[0].weight._version, x._backward_hooks)
show(model, model[0], loader, optimizer, scheduler, thread, iterator)
print([sorted(item) for item in optimizer.param_groups], sorted(optimizer.state[model[0].weight]), sorted(vars(model[0].weight)))
