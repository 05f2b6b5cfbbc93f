"""Character-level generator of invented town names, padded to one length."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

STARTS = ["ash", "brook", "clay", "dun", "elm", "fair", "green", "hart", "kings", "long", "marl", "nor"]
MIDDLES = ["", "ing", "er", "en", "ley", "ows", "al"]
ENDS = ["ton", "ham", "ford", "by", "wick", "stead", "mouth", "field", "bridgeshire", "on"]

PAD, BOS, EOS = 0, 1, 2
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = 3 + len(LETTERS)


def encode(name):
    return torch.tensor([BOS, *(3 + LETTERS.index(c) for c in name), EOS])


def decode(ids):
    return "".join(LETTERS[i - 3] for i in ids if i >= 3)


class NameModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, ids, state=None):
        hidden, state = self.rnn(self.embed(ids), state)
        return self.out(hidden), state


def train(model, names, epochs, batch_size, criterion):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(epochs):
        random.shuffle(names)
        for start in range(0, len(names), batch_size):
            encoded = [encode(name) for name in names[start : start + batch_size]]
            batch = pad_sequence(encoded, batch_first=True, padding_value=PAD)
            logits, _ = model(batch[:, :-1])
            loss = criterion(logits.transpose(1, 2), batch[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


@torch.no_grad()
def sample(model, limit=24):
    model.eval()
    ids, state = [BOS], None
    while len(ids) < limit and ids[-1] != EOS:
        logits, state = model(torch.tensor([[ids[-1]]]), state)
        ids.append(torch.multinomial(logits[0, -1].softmax(-1), 1).item())
    return decode(ids)


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    names = [a + b + c for a in STARTS for b in MIDDLES for c in ENDS]
    model = NameModel()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    train(model, names, epochs=3, batch_size=60, criterion=criterion)
    print(", ".join(sample(model) for _ in range(6)))
