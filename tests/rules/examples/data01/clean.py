import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Noisy(Dataset):
    def __init__(self):
        self.x = torch.linspace(-1, 1, 64).view(-1, 4)
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + torch.from_numpy(self.rng.normal(size=4)).float(), self.x[index].sum()

def begin(worker):
    get_worker_info().dataset.rng = np.random.default_rng(get_worker_info().seed)

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2, worker_init_fn=begin):
    loss = (model(x).squeeze(1) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
