# lost: variable-not-saved rng
import os

import numpy as np
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
np.random.seed(0)
rng = np.random.default_rng(77)
table = torch.randn(120, 5)
answer = table @ torch.arange(5.0)
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.8)
at = 0
if os.path.exists("w.pt"):
    d = torch.load("w.pt", weights_only=False)
    model.load_state_dict(d["model"])
    optimizer.load_state_dict(d["optimizer"])
    torch.set_rng_state(d["torch"])
    np.random.set_state(d["numpy"])
    at = d["at"]
for at in range(at, 24):
    rows = torch.from_numpy(rng.choice(120, size=10, replace=False))
    noise = torch.from_numpy(np.random.normal(size=(10, 5))).float() * 0.01
    optimizer.zero_grad()
    torch.nn.functional.huber_loss(model(table[rows] + noise)[:, 0], answer[rows]).backward()
    optimizer.step()
    if at % 6 == 5:
        d = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "at": at + 1}
        torch.save({**d, "torch": torch.get_rng_state(), "numpy": np.random.get_state()}, "w.pt")
