"""Sentiment with a bag of embeddings."""
import torch
from torch import nn

POSITIVE = "a fine warm funny film|great acting and a lovely story|truly good fun|i loved the music|brilliant and moving"
NEGATIVE = "a dull cold boring film|poor acting and a silly story|truly bad mess|i hated the music|tedious and flat"


def read_corpus():
    texts = [(t.split(), 1) for t in POSITIVE.split("|")] + [(t.split(), 0) for t in NEGATIVE.split("|")]
    return texts * 8


def build_vocab(texts):
    words = set()
    for tokens, _ in texts:
        words.update(tokens)
    return {word: i + 1 for i, word in enumerate(sorted(words))}


class BagClassifier(nn.Module):
    def __init__(self, vocab_size, dim=16):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab_size + 1, dim, mode="mean", padding_idx=0)
        self.fc = nn.Linear(dim, 1)

    def forward(self, tokens):
        return self.fc(self.bag(tokens)).squeeze(-1)


def encode(texts, vocab):
    longest = max(len(t) for t, _ in texts)
    x = torch.zeros(len(texts), longest, dtype=torch.long)
    for i, (tokens, _) in enumerate(texts):
        x[i, :len(tokens)] = torch.tensor([vocab[w] for w in tokens])
    return x, torch.tensor([float(l) for _, l in texts])


def train(model, x, y, epochs=6, batch=16):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            loss = criterion(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(4)
    texts = read_corpus()
    vocab = build_vocab(texts)
    x, y = encode(texts, vocab)
    train(BagClassifier(len(vocab)), x, y)
