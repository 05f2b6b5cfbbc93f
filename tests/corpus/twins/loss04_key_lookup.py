"""Look up the value that belongs to a key, by attention over the pairs of a sample."""

import torch
from torch import nn

torch.manual_seed(5)
NUM_KEYS, NUM_VALUES, NUM_PAIRS = 8, 5, 4


class Lookup(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.keys, self.values = nn.Embedding(NUM_KEYS, width), nn.Embedding(NUM_VALUES, width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, NUM_VALUES)

    def forward(self, keys: torch.Tensor, values: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        query = self.query(self.keys(asked)).unsqueeze(1)
        scores = query @ self.keys(keys).transpose(1, 2) / query.shape[-1] ** 0.5
        weights = torch.softmax(scores, dim=-1)
        return self.out((weights @ self.values(values)).squeeze(1))


model = Lookup()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(30):
    keys = torch.stack([torch.randperm(NUM_KEYS)[:NUM_PAIRS] for _ in range(32)])
    values = torch.randint(NUM_VALUES, (32, NUM_PAIRS))
    place = torch.randint(NUM_PAIRS, (32, 1))
    scores = model(keys, values, keys.gather(1, place).squeeze(1))
    loss = nn.functional.cross_entropy(scores, values.gather(1, place).squeeze(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
