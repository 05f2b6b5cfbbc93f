"""Warnings: where they are shown to come from, filters, and warnings that are errors."""
import warnings
import torch
from torch import nn
from training import batches, digest, small, train

def show(message, category, filename, lineno, file=None, line=None):
    print(category.__name__, filename.rpartition("/")[2], lineno if "script" in filename else "", str(message).partition("\n")[0][:60])

warnings.showwarning = show
warnings.simplefilter("always")

class Warning(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small()
    def forward(self, x):
        for level in range(1, 5):
            warnings.warn("in forward", stacklevel=level)
        return self.inner(x)

model = Warning()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scheduler.step()
for x, y in batches(4):
    out = model(x)
    out.grad
    loss = nn.functional.mse_loss(out, torch.ones(3))
    loss.backward(retain_graph=True, create_graph=False)
    optimizer.step()
    model.load_state_dict(model.state_dict())
with warnings.catch_warnings(record=True) as caught:
    nn.functional.softmax(x)
    nn.utils.clip_grad_norm_(iter([]), 1.0)
print([(item.category.__name__, item.filename.rpartition("/")[2], item.lineno) for item in caught])
warnings.simplefilter("error")
train(model.inner)
warnings.resetwarnings()
warnings.filterwarnings("once")
for _ in range(3):
    model(x)
print(len(warnings.filters), digest(model))
