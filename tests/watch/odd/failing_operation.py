"""An operation fails in the first step: what is printed of it, and how the script ends."""
import torch
from training import small, train

model = small()
try:
    model(torch.ones(2, 5))
except RuntimeError as error:
    print(error, error.__context__, error.__cause__)
train(model, given=[(torch.ones(2, 4), torch.zeros(2, dtype=torch.int64)), (torch.ones(2, 4), torch.tensor([0, 9]))])
