"""torch's own transformer encoder with dropout and small embeddings."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, ids):
        return self.head(self.layer(self.embed(ids)).mean(1))


torch.manual_seed(9)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids, labels = torch.randint(0, 30, (16, 10)), torch.randint(0, 4, (16,))
for step in range(4):
    loss = nn.functional.cross_entropy(model(ids), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
