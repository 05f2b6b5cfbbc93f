import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(4)
random.seed(4)


class Visits(Dataset):
    """Variable-length visit histories; the label depends on the trend of the most recent visits."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(n)
        self.items = []
        for _ in range(n):
            length = int(torch.randint(6, 60, (1,), generator=g))
            seq = torch.randn(length, 3, generator=g)
            score = seq[-4:, 0].sum() + 0.5 * seq[-4:, 1].sum()
            self.items.append((seq, (score > 0).float()))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    seqs, labels = zip(*batch)
    lengths = torch.tensor([len(s) for s in seqs])
    return pad_sequence(seqs, batch_first=True), lengths, torch.stack(labels)


class VisitGRU(nn.Module):
    def __init__(self, d_in=3, hidden=32):
        super().__init__()
        self.gru = nn.GRU(d_in, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x, lengths):
        out, _ = self.gru(x)
        last = out[torch.arange(len(x)), -1]  # expect: DATA17
        return self.head(last).squeeze(-1)


def evaluate(model, loader):
    model.eval()
    right = n = 0
    with torch.no_grad():
        for x, lengths, y in loader:
            right += ((model(x, lengths) > 0).float() == y).sum().item()
            n += len(y)
    return right / n


train_loader = DataLoader(Visits(1200), batch_size=40, shuffle=True, collate_fn=collate)
test_loader = DataLoader(Visits(500), batch_size=100, collate_fn=collate)
model = VisitGRU()
opt = torch.optim.Adam(model.parameters(), lr=6e-3)
criterion = nn.BCEWithLogitsLoss()

for epoch in range(6):
    model.train()
    total = 0.0
    for x, lengths, y in train_loader:
        loss = criterion(model(x, lengths), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        total += loss.item()
    print(f"epoch {epoch + 1} loss {total / len(train_loader):.4f}")

print(f"test accuracy {evaluate(model, test_loader):.4f}")
