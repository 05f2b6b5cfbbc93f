import torch
from torch import nn

torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        x = self.norm(x.transpose(1, 2)).permute(2, 0, 1)
        mixed, _ = self.attention(x, x, x)
        return self.out(mixed.mean(0))


model = Tagger()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x, y = torch.randn(16, 5, 8), torch.randint(0, 3, (16,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
