"""A small transformer encoder that predicts the next token; clips, and logs by hand."""

import torch
import torch.nn.functional as F
from ranges import Ranges
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, num_tokens: int = 200, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_tokens, width)
        layer = nn.TransformerEncoderLayer(width, 4, 128, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, num_tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) * 8.0
        return self.head(self.body(x))


part = Ranges()
data = TensorDataset(torch.randint(0, 200, (512, 33)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
history = torch.zeros(300, 300)
for (tokens,) in part.batches(loader):
    with part("optimizer"):
        optimizer.zero_grad()
    with part("forward"):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    with part("backward"):
        loss.backward()
    with part("optimizer"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with part("other"):
        history = history @ history
    part.end_step()
