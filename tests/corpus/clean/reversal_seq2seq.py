"""Encoder-decoder that reverses sequences: teacher forcing in training, greedy decoding in evaluation."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD, START, END, FIRST = 0, 1, 2, 3
SYMBOLS = 8
VOCABULARY = FIRST + SYMBOLS


def make_sequences(count, shortest=3, longest=6):
    """Return distinct sequences of varied length."""
    found = {}
    while len(found) < count:
        length = torch.randint(shortest, longest + 1, ()).item()
        sequence = tuple(torch.randint(FIRST, VOCABULARY, (length,)).tolist())
        found[sequence] = None
    return [torch.tensor(sequence) for sequence in found]


def collate(sequences):
    source = pad_sequence(sequences, batch_first=True, padding_value=PAD)
    answers = [torch.cat([s.flip(0), torch.tensor([END])]) for s in sequences]
    target = pad_sequence(answers, batch_first=True, padding_value=PAD)
    return source, torch.tensor([len(s) for s in sequences]), target


class Seq2Seq(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, VOCABULARY)

    def encode(self, source, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(source), lengths, batch_first=True, enforce_sorted=False
        )
        return self.encoder(packed)[1]

    def forward(self, source, lengths, target):
        start = torch.full((len(target), 1), START)
        inputs = torch.cat([start, target[:, :-1]], dim=1)
        states, _ = self.decoder(self.embed(inputs), self.encode(source, lengths))
        return self.out(states)

    def greedy(self, source, lengths, limit):
        state = self.encode(source, lengths)
        token = torch.full((len(source), 1), START)
        produced = []
        for _ in range(limit):
            out, state = self.decoder(self.embed(token), state)
            token = self.out(out).argmax(dim=-1)
            produced.append(token)
        return torch.cat(produced, dim=1)


@torch.no_grad()
def token_accuracy(model, loader):
    model.eval()
    right = scored = 0
    for source, lengths, target in loader:
        produced = model.greedy(source, lengths, limit=target.size(1))
        wanted = target != PAD
        right += ((produced == target) & wanted).sum().item()
        scored += wanted.sum().item()
    return right / scored


def main():
    torch.manual_seed(103)
    sequences = make_sequences(1500)
    train_loader = DataLoader(sequences[:1280], batch_size=64, shuffle=True, collate_fn=collate)
    test_loader = DataLoader(sequences[1280:], batch_size=110, collate_fn=collate)
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    for epoch in range(5):
        model.train()
        for source, lengths, target in train_loader:
            logits = model(source, lengths, target)
            loss = criterion(logits.transpose(1, 2), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        accuracy = token_accuracy(model, test_loader)
        print(f"epoch {epoch}: last batch {loss.item():.3f} greedy token accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
