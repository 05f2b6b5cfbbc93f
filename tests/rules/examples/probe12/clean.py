import torch
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attend = nn.Linear(6, 16), nn.MultiheadAttention(16, 4, batch_first=True)
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        h = self.embed(x)
        h = h + self.attend(h, h, h)[0]
        heads = h.view(len(h), -1, 4, 4).transpose(1, 2)
        merged = heads.transpose(1, 2).reshape(len(h), -1, 16)
        grid = merged.view(len(h), 2, 5, 16).flatten(1, 2)
        return self.out(grid.mean(1))


model = Model()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x = torch.randn(8, 10, 6)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0].sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
