"""Whether a sentence of events is calm or busy, by its last state."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(8)


class EventReader(nn.Module):
    def __init__(self, num_kinds: int = 12, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_kinds, width)
        self.lstm = nn.LSTM(width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, events: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embed(events).transpose(0, 1), lengths, enforce_sorted=False)
        states, lengths = pad_packed_sequence(self.lstm(packed)[0])
        return self.head(states[-1])  # expect: DATA17


model = EventReader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(24):
    lengths = torch.randint(4, 15, (32,))
    events = torch.randint(0, 12, (32, 14))
    busy = (events[:, :4] > 5).sum(1) > 2
    loss = nn.functional.cross_entropy(model(events, lengths), busy.long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
