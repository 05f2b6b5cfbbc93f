"""An auxiliary classifier whose output the loss leaves out."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(10, 20)
        self.auxiliary = nn.Linear(20, 2)
        self.head = nn.Linear(20, 2)

    def forward(self, x):
        hidden = torch.relu(self.stem(x))
        return self.head(hidden), self.auxiliary(hidden)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(64, 10)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(Inception())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for a, b in loader:
            main_logits, _ = model(a)  # expect: DIST13
            loss = nn.functional.cross_entropy(main_logits, b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
