import torch
from torch import nn

torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        mixed, _ = self.attention(x, x, x)  # expect: PROBE01
        return self.out(mixed.mean(1))


model = Tagger()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x, y = torch.randn(16, 5, 8), torch.randint(0, 3, (16,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
