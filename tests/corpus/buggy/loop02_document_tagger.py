"""Multi-label tagging of short documents, bag of embeddings, large effective batch by accumulation."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    vocabulary: int = 500
    tags: int = 8
    length: int = 24
    documents: int = 512
    micro_batch: int = 16
    accumulate: int = 4
    epochs: int = 6
    lr: float = 1e-2
    seed: int = 3


class Documents(Dataset):
    """Random words; a tag applies if enough of the tag's own words occur."""

    def __init__(self, cfg, seed):
        g = torch.Generator().manual_seed(seed)
        self.words = torch.randint(cfg.vocabulary, (cfg.documents, cfg.length), generator=g)
        counts = nn.functional.one_hot(self.words % cfg.tags, cfg.tags).sum(dim=1)
        self.tags = (counts >= 4).float()

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return self.words[index], self.tags[index]


class Tagger(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.bag = nn.EmbeddingBag(cfg.vocabulary, 32, mode="mean")
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, cfg.tags))

    def forward(self, words):
        return self.head(self.bag(words))


def evaluate(model, loader):
    model.eval()
    right, total = 0, 0
    with torch.no_grad():
        for words, tags in loader:
            guess = model(words) > 0
            right += (guess == tags.bool()).sum().item()
            total += tags.numel()
    return right / total


def run(cfg):
    torch.manual_seed(cfg.seed)
    train_loader = DataLoader(
        Documents(cfg, seed=10), batch_size=cfg.micro_batch, shuffle=True, drop_last=True
    )
    test_loader = DataLoader(Documents(cfg, seed=11), batch_size=128)
    model = Tagger(cfg)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)

    for epoch in range(cfg.epochs):
        model.train()
        epoch_loss = 0.0
        for i, (words, tags) in enumerate(train_loader, start=1):
            optimizer.zero_grad()  # expect: LOOP02
            loss = criterion(model(words), tags)
            (loss / cfg.accumulate).backward()
            if i % cfg.accumulate == 0:
                optimizer.step()
            epoch_loss += loss.item()
        epoch_loss /= len(train_loader)
        print(f"epoch {epoch + 1}: loss {epoch_loss:.4f}, test {evaluate(model, test_loader):.4f}")


if __name__ == "__main__":
    run(Config())
