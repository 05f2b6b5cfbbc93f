"""A recurrent model whose padded outputs are scored position by position, with a mask."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return [self.head(states[:, place]) for place in reversed(range(states.shape[1]))]


torch.manual_seed(9)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(16):
    x = torch.randn(12, 7, 3)
    lengths = torch.randint(2, 8, (12,))
    labels = x.cumsum(1).sum(2).sign().long() + 1
    losses = []
    scores = model(x, lengths)
    for place, score in zip(reversed(range(len(scores))), scores, strict=True):
        is_there = place < lengths
        losses.append(nn.functional.cross_entropy(score[is_there], labels[is_there, place]))
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
