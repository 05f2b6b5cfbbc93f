import torch
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.rnn = nn.Conv1d(3, 8, 3, padding=1), nn.GRU(8, 8, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        h = self.conv(x)
        h = h.view(len(h), -1, 8)  # expect: PROBE12
        return self.out(self.rnn(h)[0][:, -1])


model = Model()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x = torch.randn(16, 3, 12)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0].sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
