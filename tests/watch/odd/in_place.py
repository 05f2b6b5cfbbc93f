"""Weights and buffers that the script changes itself, shares, swaps and reads past autograd."""
import copy
import numpy as np
import torch
from torch import nn
from training import batches, digest, small, train

model, other = small(), small()
other[0].weight = model[0].weight
view = model[3].bias.detach().numpy()
train(model)
view += 1
with torch.no_grad():
    model[0].weight.mul_(0.5)
    model[3].weight.data = torch.ones(3, 8)
    model[3].weight.grad.zero_()
versions = [item._version for item in model.parameters()]
train(other)
torch.utils.swap_tensors(model[0].bias, nn.Parameter(torch.zeros(8)))
train(model)
model.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)
train(model)
model.register_buffer("mean", torch.zeros(2), persistent=False)
model.half().float().double().float()
train(model)
print(versions, [item._version for item in model.parameters()], view.tolist(), digest(model, other), np.array_equal(view, view))
