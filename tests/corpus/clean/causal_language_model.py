"""A small causal transformer on sums written out; the question and the padding carry the label -100."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

SYMBOLS = "0123456789+="
PAD, END = len(SYMBOLS), len(SYMBOLS) + 1
VOCABULARY = len(SYMBOLS) + 2
LONGEST = 10


def encode(text):
    return [SYMBOLS.index(c) for c in text]


def make_pairs():
    """Return all sums of two numbers below 40, each with its answer; in random order."""
    sums = [(f"{a}+{b}=", str(a + b)) for a in range(40) for b in range(40)]
    return [sums[i] for i in torch.randperm(len(sums)).tolist()]


def collate(pairs):
    tokens = torch.full((len(pairs), LONGEST), PAD)
    labels = torch.full((len(pairs), LONGEST), -100)
    for row, (question, answer) in enumerate(pairs):
        q, a = encode(question), [*encode(answer), END]
        tokens[row, : len(q) + len(a)] = torch.tensor(q + a)
        labels[row, len(q) : len(q) + len(a)] = torch.tensor(a)
    return tokens, labels


class CausalLM(nn.Module):
    def __init__(self, width=64, heads=4, depth=2):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.position = nn.Embedding(LONGEST, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(
            layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        length = tokens.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.token(tokens) + self.position(torch.arange(length))
        return self.out(self.blocks(x, mask=mask, is_causal=True))


def loss_sum(model, tokens, labels):
    """Sum over the answers' tokens; position t predicts token t + 1."""
    logits = model(tokens[:, :-1])
    goal = labels[:, 1:]
    total = F.cross_entropy(logits.flatten(0, 1), goal.flatten(), ignore_index=-100, reduction="sum")
    return total, (goal != -100).sum().item()


def main():
    torch.manual_seed(83)
    pairs = make_pairs()
    train_loader = DataLoader(pairs[:1400], batch_size=64, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(pairs[1400:], batch_size=100, collate_fn=collate)
    model = CausalLM()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(4):
        model.train()
        total = count = 0
        for tokens, labels in train_loader:
            summed, scored = loss_sum(model, tokens, labels)
            optimizer.zero_grad()
            (summed / scored).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total, count = total + summed.item(), count + scored
        model.eval()
        with torch.no_grad():
            parts = [loss_sum(model, tokens, labels) for tokens, labels in val_loader]
        val = sum(s.item() for s, _ in parts) / sum(n for _, n in parts)
        print(f"epoch {epoch}: train {total / count:.3f} validation {val:.3f} per token")


if __name__ == "__main__":
    main()
