"""Character model; nothing sets a seed."""
import argparse

import torch
import torch.nn as nn

TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. " * 6


class CharLSTM(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, dim, num_layers=1, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, x, state=None):
        out, state = self.lstm(self.embed(x), state)
        return self.head(out), state


def get_batch(data, size, length):
    starts = torch.randint(0, len(data) - length - 1, (size,))
    x = torch.stack([data[s:s + length] for s in starts])
    y = torch.stack([data[s + 1:s + length + 1] for s in starts])
    return x, y


def main(args):
    torch.manual_seed(args.seed)
    chars = sorted(set(TEXT))
    index = {c: i for i, c in enumerate(chars)}
    data = torch.tensor([index[c] for c in TEXT])
    model = CharLSTM(len(chars), args.dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=args.steps)
    loss_fn = nn.CrossEntropyLoss()
    for step in range(args.steps):
        x, y = get_batch(data, 16, 24)
        logits, _ = model(x)
        loss = loss_fn(logits.reshape(-1, len(chars)), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=48)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
