"""torch.export: the program of a model before and after training."""
# slow: the compiler is imported
import torch
from training import digest, small, train

model = small().eval()
print(torch.export.export(model, (torch.ones(2, 4),)).graph)
train(model)
print(torch.export.export(model, (torch.ones(2, 4),)).module()(torch.ones(2, 4)).sum().item(), digest(model))
