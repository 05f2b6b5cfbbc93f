import io

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
file = io.BytesIO()
torch.save(model, file)  # expect: CKPT03
print(file.tell())
