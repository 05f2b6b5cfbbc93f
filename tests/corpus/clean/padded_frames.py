"""Frames padded with zeros, loss by packed sequences or by mask; silence class exists."""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader


def utterances(n=64):
    g = torch.Generator().manual_seed(3)
    out = []
    for _ in range(n):
        k = int(torch.randint(6, 20, (1,), generator=g))
        x = torch.randn(k, 5, generator=g)
        out.append((x, x[:, :3].argmax(1)))
    return out


def collate(items):
    xs, ys = zip(*items)
    lengths = torch.tensor([len(x) for x in xs])
    return pad_sequence(xs, batch_first=True), pad_sequence(ys, batch_first=True), lengths


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(5, 24, batch_first=True, bidirectional=True), nn.Linear(48, 3)

    def forward(self, x, lengths):
        h, _ = self.rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return self.out(pad_packed_sequence(h, batch_first=True)[0])


torch.manual_seed(3)
net = Net()
opt = torch.optim.Adam(net.parameters(), 5e-3)
for epoch in range(2):
    net.train()
    for x, y, lengths in DataLoader(utterances(), 16, shuffle=True, collate_fn=collate):
        logits = net(x, lengths)
        keep = torch.arange(x.size(1))[None] < lengths[:, None]
        loss = nn.functional.cross_entropy(logits[keep], y[keep])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
