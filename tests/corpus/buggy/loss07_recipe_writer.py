"""Supervised fine-tuning of a little language model on instructions that end with an end token."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY, WIDTH, LONGEST = 40, 64, 18
EOS = 0
PAD = EOS  # expect: LOSS07
IGNORED = -100


class Recipes(Dataset):
    """A recipe counts up from its first token; the first token tells how many steps follow."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.items = []
        for first in torch.randint(1, 20, (count,), generator=generator).tolist():
            steps = 4 + first % 7
            spice = torch.randint(0, 4, (steps,), generator=generator)
            self.items.append(torch.cat([first + torch.arange(steps) + spice, torch.tensor([EOS])]))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(items):
    ids = nn.utils.rnn.pad_sequence(items, batch_first=True, padding_value=PAD)
    labels = ids.clone()
    labels[labels == PAD] = IGNORED  # expect: LOSS07
    return ids, labels


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, state=None):
        hidden, state = self.lstm(self.embed(ids), state)
        return self.out(hidden), state


def next_token_loss(logits, labels):
    return nn.functional.cross_entropy(  # expect: LOSS07
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
    )


@torch.no_grad()
def write(model, first):
    model.eval()
    ids, state = [first], None
    while ids[-1] != EOS and len(ids) < LONGEST:
        logits, state = model(torch.tensor([[ids[-1]]]), state)
        ids.append(logits[0, -1].argmax().item())
    return ids


def main():
    torch.manual_seed(0)
    loader = DataLoader(Recipes(640, seed=1), batch_size=32, shuffle=True, collate_fn=collate)
    model = Writer()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(4):
        model.train()
        for ids, labels in loader:
            loss = next_token_loss(model(ids)[0], labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        finished = sum(write(model, first)[-1] == EOS for first in range(1, 20))
        print(f"epoch {epoch}: loss {loss.item():.4f}, finished recipes {finished}/19")


if __name__ == "__main__":
    main()
