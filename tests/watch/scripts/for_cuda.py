"""Trains as scripts for CUDA do, and prints a digest of the weights. Its twin has "cpu" for each "cuda"."""

import hashlib
import io
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("error")
torch.manual_seed(0)
torch.cuda.manual_seed_all(1)
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 2)).to(device)
average = nn.DataParallel(nn.Linear(8, 16, device="cuda"))
average.load_state_dict({f"module.{name}": value for name, value in model[0].state_dict().items()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
noise = torch.Generator(device="cuda").manual_seed(3)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
has_cuda = torch.cuda.is_available()
for batch in DataLoader(data, batch_size=8, shuffle=True, pin_memory=has_cuda):
    x, y = batch[0].to("cuda:0", non_blocking=True), batch[1].to(device)
    optimizer.zero_grad()
    x = x + 0.1 * torch.randn(x.shape, generator=noise, device="cuda")
    loss = nn.functional.cross_entropy(model(x), y)  # -> ForwardPass
    loss.backward()  # -> BackwardPass
    optimizer.step()  # -> OptimizerStep
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
weights = torch.load(file, map_location="cuda")
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in weights.values()))
print("weights", digest.hexdigest())
