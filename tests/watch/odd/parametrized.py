"""Parametrizations: weight norm of both kinds, spectral norm, orthogonal weights, pruning."""
import warnings
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from training import digest, small, train
warnings.simplefilter("ignore")

class Positive(nn.Module):
    calls = 0
    def forward(self, weight):
        Positive.calls += 1
        return weight.exp()

model = small()
parametrize.register_parametrization(model[0], "weight", Positive())
parametrizations.weight_norm(model[3])
train(model)
print(Positive.calls)
with parametrize.cached():
    print(model(torch.ones(2, 4)).sum().item() == model(torch.ones(2, 4)).sum().item())
others = [nn.utils.weight_norm(nn.Linear(4, 3)), nn.utils.spectral_norm(nn.Linear(4, 3)), parametrizations.spectral_norm(nn.Linear(4, 3)), parametrizations.orthogonal(nn.Linear(4, 3))]
for other in others:
    train(other)
pruned = nn.Linear(4, 3)
prune.l1_unstructured(pruned, "weight", 0.5)
train(pruned)
print(Positive.calls, digest(model, pruned, *others))
