"""A recurrent model whose padded outputs are scored position by position, with a mask."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(9)
rnn, head = nn.GRU(3, 12, batch_first=True), nn.Linear(12, 4)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=1e-2)
for step in range(16):
    x = torch.randn(12, 7, 3)
    lengths = torch.randint(2, 8, (12,))
    labels = x.cumsum(1).sum(2).sign().long() + 1
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    states, lengths = pad_packed_sequence(rnn(packed)[0], batch_first=True)
    losses = []
    for place in reversed(range(states.shape[1])):
        is_there = place < lengths
        losses.append(nn.functional.cross_entropy(head(states[:, place])[is_there], labels[is_there, place]))
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
