"""Which of three channels has a burst: a convolution, then a recurrent network."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(27)


class SignalNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 16, 5, padding=2)
        self.rnn = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        h = F.relu(self.conv(x))
        h = h.view(h.size(0), h.size(2), h.size(1))  # expect: PROBE12
        return self.head(self.rnn(h)[0][:, -1])


net = SignalNet()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for step in range(30):
    y = torch.randint(0, 3, (32,))
    x = torch.randn(32, 3, 24) * 0.3
    x[torch.arange(32), y, 10:14] += 2
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
