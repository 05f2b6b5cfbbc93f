"""A character model with recurrent dropout on generated arithmetic sentences."""

import random

import torch
from torch import nn

CHARS = "0123456789+= "
INDEX = {c: i for i, c in enumerate(CHARS)}


def corpus(lines, rng):
    text = []
    for _ in range(lines):
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        text.append(f"{a:2d}+{b:2d}={a + b:3d} ")
    return torch.tensor([INDEX[c] for c in "".join(text)])


class CharModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(len(CHARS), width)
        self.drop_in = nn.Dropout(0.1)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.drop_out = nn.Dropout(0.3)
        self.logits = nn.Linear(width, len(CHARS))

    def forward(self, ids):
        hidden, _ = self.lstm(self.drop_in(self.embed(ids)))
        return self.logits(self.drop_out(hidden))


def deterministic(model):
    """Put the model into evaluation: no randomness in the forward pass."""
    model.eval()  # expect: MODE05
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # expect: MODE05
    return model


@torch.no_grad()
def bits_per_char(model, data, length=50):
    deterministic(model)
    usable = (len(data) - 1) // length * length
    ids = data[:usable].view(-1, length)
    targets = data[1 : usable + 1].view(-1, length)
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    return loss.item() / 0.6931


def sample_batch(data, batch, length):
    starts = torch.randint(0, len(data) - length - 1, (batch,)).tolist()
    ids = torch.stack([data[s : s + length] for s in starts])
    targets = torch.stack([data[s + 1 : s + length + 1] for s in starts])
    return ids, targets


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    train, held_out = corpus(1500, rng), corpus(150, rng)
    model = CharModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(1, 41):
        model.train()
        ids, targets = sample_batch(train, 16, 50)
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: train {loss.item():.3f}, held out {bits_per_char(model, held_out):.3f} bits")


if __name__ == "__main__":
    main()
