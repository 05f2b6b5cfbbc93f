import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentivePool(nn.Module):
    """Weights the steps of a sequence: (batch, time, dim) -> (batch, dim)."""

    def __init__(self, dim):
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, h):
        scores = self.score(torch.tanh(h))
        alpha = F.softmax(scores, dim=0)  # expect: LOSS04
        return (alpha * h).sum(dim=1)


class Net(nn.Module):
    def __init__(self, channels=5, hidden=24, classes=4):
        super().__init__()
        self.gru = nn.GRU(channels, hidden, batch_first=True)
        self.pool = AttentivePool(hidden)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x):
        h, _ = self.gru(x)
        return self.fc(self.pool(h))


def batches(n, size, generator):
    for _ in range(n):
        y = torch.randint(0, 4, (size,), generator=generator)
        x = torch.randn(size, 15, 5, generator=generator)
        x[torch.arange(size), 7, 0] += y.float()
        yield x, y


torch.manual_seed(1)
gen = torch.Generator().manual_seed(21)
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.0)
criterion = nn.CrossEntropyLoss()
for step, (x, y) in enumerate(batches(60, 20, gen)):
    opt.zero_grad()
    loss = criterion(net(x), y)
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, loss.item())
