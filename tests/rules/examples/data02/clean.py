import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        generator = torch.Generator().manual_seed(1)
        for number in range(64):
            x = torch.randn(4, generator=generator)
            if number % worker.num_workers == worker.id:
                yield x, x.sum()

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Stream(), batch_size=8, num_workers=2)
for x, y in loader:
    loss = (model(x).squeeze(1) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
