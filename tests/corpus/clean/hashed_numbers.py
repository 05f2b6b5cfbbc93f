"""Hashes of numbers, a set of ids, and a dataset that is told the epoch."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Key:
    def __init__(self, name, number):
        self.name, self.number = name, number

    def __hash__(self):
        return hash((self.name, self.number))

    def __eq__(self, other):
        return (self.name, self.number) == (other.name, other.number)


class Growing(Dataset):
    """Noise that shrinks with the epoch."""

    def __init__(self, n):
        self.x = torch.randn(n, 5)
        self.y = (self.x.sum(1) > 0).long()
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + torch.randn(5) * 0.3 / (1 + self.epoch), self.y[i]


def bucket(user, item):
    return hash((user, item)) % 16


torch.manual_seed(0)
seen = set()
cache = {Key("a", 1): 0, Key("b", 2): 1}
users = torch.randint(0, 50, (40,)).tolist()
for user in users:
    seen.add(user)
index = {user: i for i, user in enumerate(seen)}
print(len(index), bucket(3, 4), cache[Key("a", 1)])
data = Growing(200)
loader = DataLoader(data, batch_size=20, shuffle=True)
net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(3):
    data.set_epoch(epoch)
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
    print(epoch, loss.item())
