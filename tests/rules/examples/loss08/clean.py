import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 16), nn.Linear(16, 20)

    def forward(self, ids, labels):
        scores = self.out(self.embed(ids))
        return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    tokens = torch.randint(0, 20, (8, 12))
    loss = model(tokens, labels=tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
