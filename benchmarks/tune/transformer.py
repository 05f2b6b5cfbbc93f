"""Train a small language model of characters on a source file of Python. AdamW, clipping, a schedule."""

import argparse
import inspect
import typing

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH = 64


class Text(Dataset):
    """Pieces of text, with the characters that follow."""

    def __init__(self):
        self.codes = torch.tensor([min(ord(letter), 127) for letter in inspect.getsource(typing)])

    def __len__(self):
        return (len(self.codes) - 1) // 8 - LENGTH

    def __getitem__(self, index):
        piece = self.codes[index * 8 : index * 8 + LENGTH + 1]
        return piece[:-1], piece[1:]


class Model(nn.Module):
    """Decoder only: each place sees what is before it."""

    def __init__(self, width=128, heads=4, depth=3):
        super().__init__()
        self.tokens = nn.Embedding(128, width)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, tokens):
        hidden = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.body(hidden, mask=self.mask, is_causal=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()

    torch.manual_seed(7)
    loader = DataLoader(Text(), batch_size=8, shuffle=True, drop_last=True)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    num_steps = args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_steps)

    step = 0
    for epoch in range(args.epochs):
        for tokens, targets in loader:
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch}, step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
