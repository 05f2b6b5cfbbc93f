import io
import random

import numpy
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
file = io.BytesIO()
state = {"model": model.state_dict(), "numpy": numpy.random.default_rng(0), "random": random.getstate()}
torch.save(state, file)
print(file.tell())
