# Character model over arithmetic strings ("17+25=042."), GRU, one update from several micro-batches.
import random

import torch
import torch.nn.functional as F
from torch import nn

SEED = 1234
random.seed(SEED)
torch.manual_seed(SEED)

ALPHABET = "0123456789+=."
MICRO_BATCH = 16
GRAD_ACCUM = 4
UPDATES = 60


def equation(heldout=False):
    while True:
        a, b = random.randint(0, 99), random.randint(0, 99)
        if ((a + 3 * b) % 10 == 0) == heldout:
            return f"{a:02d}+{b:02d}={a + b:03d}."


def encode(lines):
    return torch.tensor([[ALPHABET.index(c) for c in line] for line in lines])


class CharModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), 32)
        self.gru = nn.GRU(32, width, batch_first=True)
        self.out = nn.Linear(width, len(ALPHABET))

    def forward(self, tokens):
        hidden, _ = self.gru(self.embed(tokens))
        return self.out(hidden)


def token_loss(model, batch):
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


model = CharModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
heldout = encode([equation(heldout=True) for _ in range(64)])

smooth = None
for update in range(UPDATES):
    model.train()
    optimizer.zero_grad()
    running = 0.0
    for _ in range(GRAD_ACCUM):
        batch = encode([equation() for _ in range(MICRO_BATCH)])
        loss = token_loss(model, batch)
        (loss / GRAD_ACCUM).backward()
        running += loss.item() / GRAD_ACCUM
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    optimizer.step()
    smooth = running if smooth is None else 0.9 * smooth + 0.1 * running
    if (update + 1) % 20 == 0:
        model.eval()
        with torch.no_grad():
            held = token_loss(model, heldout).item()
        print(f"update {update + 1:3d}  loss {smooth:.3f}  held out {held:.3f}")
