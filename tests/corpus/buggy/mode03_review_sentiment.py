"""Bag-of-embeddings sentiment model on generated reviews."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocabulary: int = 400
    length: int = 30
    reviews: int = 960
    batch_size: int = 48
    width: int = 64
    dropout: float = 0.5
    epochs: int = 4
    lr: float = 3e-3
    seed: int = 7


def generate_reviews(cfg):
    """Words above the middle of the vocabulary are somewhat more frequent in good reviews."""
    generator = torch.Generator().manual_seed(cfg.seed)
    mood = torch.randint(0, 2, (cfg.reviews,), generator=generator)
    half = cfg.vocabulary // 2
    words = torch.randint(0, half, (cfg.reviews, cfg.length), generator=generator)
    positive = torch.rand(words.shape, generator=generator) < (0.4 + 0.2 * mood).unsqueeze(1)
    return words + half * positive, mood


class SentimentNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocabulary, cfg.width)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.width, cfg.width), nn.ReLU(), nn.Dropout(cfg.dropout), nn.Linear(cfg.width, 2)
        )

    def forward(self, words):
        return self.mlp(self.embed(words).mean(dim=1))


def accuracy(model, words, mood):
    model.eval()  # expect: MODE03
    with torch.no_grad():
        hits = model(words).argmax(dim=1) == mood
    return hits.float().mean().item()


def run(cfg):
    torch.manual_seed(cfg.seed)
    words, mood = generate_reviews(cfg)
    split = int(0.8 * cfg.reviews)
    train_words, train_mood = words[:split], mood[:split]
    val_words, val_mood = words[split:], mood[split:]

    model = SentimentNet(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    model.train()
    for epoch in range(cfg.epochs):
        order = torch.randperm(split)
        for start in range(0, split, cfg.batch_size):  # expect: MODE03
            index = order[start : start + cfg.batch_size]
            logits = model(train_words[index])
            loss = F.cross_entropy(logits, train_mood[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} val accuracy {accuracy(model, val_words, val_mood):.3f}")


if __name__ == "__main__":
    run(Config())
