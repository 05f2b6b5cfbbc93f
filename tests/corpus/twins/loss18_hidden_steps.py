"""Hidden steps of a dance: one step in each row is hidden, and is to be told from the others."""

import torch
from torch import nn

torch.manual_seed(16)
NUM_STEPS, HIDDEN, LENGTH = 14, 14, 9


class Dance(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(NUM_STEPS + 1, width)
        self.places = nn.Parameter(0.1 * torch.randn(1, LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 2, 48, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, NUM_STEPS + 1)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(steps) + self.places))


def draw(num: int) -> tuple[torch.Tensor, torch.Tensor]:
    steps = (torch.randint(0, NUM_STEPS, (num, 1)) + torch.arange(LENGTH)) % NUM_STEPS
    hidden = torch.arange(LENGTH) == torch.randint(0, LENGTH, (num, 1))
    labels = steps.masked_fill(~hidden, -100)
    return steps.masked_fill(hidden, HIDDEN), labels


model = Dance()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(30):
    steps, labels = draw(32)
    loss = nn.functional.cross_entropy(model(steps).flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
