import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, hidden = self.rnn(packed)
        states, _ = pad_packed_sequence(states, batch_first=True)
        return self.out(states[:, -1])  # expect: DATA17


torch.manual_seed(0)
model = Reader()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x, lengths = torch.randn(8, 6, 4), torch.arange(8) % 4 + 3
    loss = nn.functional.cross_entropy(model(x, lengths), (x[:, 0, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
