"""Intent classification with a hand-written transformer encoder and the usual two parameter groups."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PAD = 0


class EncoderBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.attention_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.output_norm = nn.LayerNorm(width)

    def forward(self, x, padding):
        attended, _ = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)
        x = self.attention_norm(x + attended)
        return self.output_norm(x + self.down(F.gelu(self.up(x))))


class IntentModel(nn.Module):
    def __init__(self, vocab, intents, width=32, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=PAD)
        self.blocks = nn.ModuleList([EncoderBlock(width, 4) for _ in range(layers)])
        self.classifier = nn.Linear(width, intents)

    def forward(self, ids):
        padding = ids == PAD
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, padding)
        keep = (~padding).unsqueeze(-1)
        return self.classifier((x * keep).sum(dim=1) / keep.sum(dim=1))


def make_optimizer(model, lr, weight_decay):
    no_decay = ["LayerNorm.bias", "LayerNorm.weight"]  # expect: PAR08
    named = list(model.named_parameters())
    groups = [
        {
            "params": [p for n, p in named if not any(nd in n for nd in no_decay)],
            "weight_decay": weight_decay,
        },
        {"params": [p for n, p in named if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr)  # expect: PAR08


def utterances(n, vocab, intents, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(intents, (n,), generator=g)
    ids = torch.randint(1 + intents, vocab, (n, 14), generator=g)
    ids[torch.arange(n), torch.randint(6, (n,), generator=g)] = 1 + labels
    lengths = torch.randint(7, 15, (n, 1), generator=g)
    ids[torch.arange(14) >= lengths] = PAD
    return TensorDataset(ids, labels)


def accuracy(model, dataset):
    model.eval()
    hits = 0
    with torch.no_grad():
        for ids, labels in DataLoader(dataset, batch_size=128):
            hits += (model(ids).argmax(1) == labels).sum().item()
    return hits / len(dataset)


def main(args):
    torch.manual_seed(args.seed)
    train_set, dev_set = utterances(640, 80, 6, seed=1), utterances(128, 80, 6, seed=2)
    model = IntentModel(80, 6)
    optimizer = make_optimizer(model, args.lr, args.weight_decay)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for ids, labels in DataLoader(train_set, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        print(f"epoch {epoch}: loss {total / len(train_set):.3f}  dev {accuracy(model, dev_set):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=18)
    main(parser.parse_args())
