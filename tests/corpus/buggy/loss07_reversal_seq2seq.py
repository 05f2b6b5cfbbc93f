"""Sequences are reversed by an encoder and a decoder."""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD, BOS, EOS, VOCAB = 0, 1, 2, 20
torch.manual_seed(0)


class Reverse(torch.utils.data.Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(1)
        lengths = torch.randint(2, 9, (n,), generator=g).tolist()
        self.rows = [torch.randint(3, VOCAB, (k,), generator=g) for k in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return row, torch.cat([torch.tensor([BOS]), row.flip(0), torch.tensor([EOS])])


def collate(pairs):
    source, target = zip(*pairs)
    return pad_sequence(source, batch_first=True, padding_value=PAD), pad_sequence(
        target, batch_first=True, padding_value=PAD
    )


class Seq2Seq(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, source, target_in):
        _, state = self.encoder(self.embed(source))
        states, _ = self.decoder(self.embed(target_in), state)
        return self.out(states)


model = Seq2Seq()
criterion = nn.CrossEntropyLoss()  # expect: LOSS07
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
loader = DataLoader(Reverse(192), batch_size=24, shuffle=True, collate_fn=collate)
for epoch in range(3):
    model.train()
    for source, target in loader:
        logits = model(source, target[:, :-1])
        loss = criterion(logits.reshape(-1, VOCAB), target[:, 1:].reshape(-1))  # expect: LOSS07
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(epoch, loss.item())
