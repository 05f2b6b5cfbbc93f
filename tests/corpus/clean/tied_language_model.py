"""A character model whose output layer shares the embedding's weight."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)

WORDS = ["red", "green", "blue", "small", "large", "cat", "dog", "bird", "runs", "sleeps", "sings", "often"]
ALPHABET = sorted(set("".join(WORDS) + " ."))
INDEX = {c: i for i, c in enumerate(ALPHABET)}


def write_text(sentences):
    picks = torch.randint(0, len(WORDS), (sentences, 4)).tolist()
    return " ".join(" ".join(WORDS[i] for i in row) + "." for row in picks)


class TiedModel(nn.Module):
    def __init__(self, vocabulary, width=48):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.embed.weight, std=width**-0.5)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        states, _ = self.rnn(self.embed(tokens))
        return self.out(states)


def random_windows(stream, length=32, batch=32):
    starts = torch.randint(0, len(stream) - length - 1, (batch, 1))
    window = stream[starts + torch.arange(length + 1)]
    return window[:, :-1], window[:, 1:]


text = write_text(400)
stream = torch.tensor([INDEX[c] for c in text])
cut = int(0.9 * len(stream))
train_stream, val_stream = stream[:cut], stream[cut:]

model = TiedModel(len(ALPHABET))
assert model.out.weight is model.embed.weight
print("parameters:", sum(p.numel() for p in model.parameters()))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for step in range(120):
    model.train()
    inputs, targets = random_windows(train_stream)
    logits = model(inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    usable = (len(val_stream) - 1) // 32 * 32
    inputs = val_stream[:usable].view(-1, 32)
    targets = val_stream[1 : usable + 1].view(-1, 32)
    val_loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
print(f"validation loss {val_loss.item():.3f}")
