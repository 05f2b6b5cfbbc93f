# nodes of one graph are predicted from their neighbours only; features per node are short series
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
N, T = 40, 6
adj = (torch.rand(N, N) < 0.15).float()
adj = ((adj + adj.T) > 0).float() * (1 - torch.eye(N))
adj = adj / adj.sum(1, keepdim=True).clamp(min=1)


class FromNeighbours(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.out = nn.Linear(T * 2, 16), nn.Linear(16, 3)

    def forward(self, series):
        h = F.relu(self.enc(series.flatten(1)))
        return self.out(adj @ h)


model = FromNeighbours()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
base = torch.randn(N, T, 2)
y = (adj @ base.mean(1))[:, 0].gt(0).long() + (adj @ base.mean(1))[:, 1].gt(0).long()
for step in range(40):
    series = base + 0.05 * torch.randn_like(base)
    loss = F.cross_entropy(model(series), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
