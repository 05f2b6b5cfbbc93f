"""Objects of `__main__` in pickles: models, optimizers, functions of torch, a whole checkpoint."""
import copy, io, pickle
import torch
from torch import nn
from training import batches, digest, train

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
    def forward(self, x):
        return self.inner(x)

def tell(*given):
    return sum(given)

torch.manual_seed(0)
model = Model()
optimizer = train(model, optimizer=torch.optim.Adam(model.parameters()), num=4)
model, optimizer = pickle.loads(pickle.dumps((model, optimizer)))
train(model, optimizer=optimizer)
other = copy.deepcopy(model)
again = copy.deepcopy(optimizer)
train(other, optimizer=again)
file = io.BytesIO()
torch.save({"model": model, "optimizer": optimizer, "tell": tell}, file)
file.seek(0)
loaded = torch.load(file, weights_only=False)
train(loaded["model"], optimizer=loaded["optimizer"], num=4)
print(digest(model), digest(other), digest(loaded["model"]), loaded["tell"](1, 2))
for item in (torch.relu, torch.random.get_rng_state, torch.save, nn.functional.relu, torch.optim.SGD, nn.utils.clip_grad_norm_, torch.autograd.grad):
    print(pickle.loads(pickle.dumps(item)) is item, len(pickle.dumps(item)))
print(len(pickle.dumps(model)), len(pickle.dumps(optimizer)))
