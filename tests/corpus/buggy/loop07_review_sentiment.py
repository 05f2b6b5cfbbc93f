"""Sentiment of short reviews: a small transformer encoder, accumulated gradients."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build_reviews(n, vocab, length, seed):
    """Words of the upper half of the vocabulary praise, the others complain."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocab, (n, length), generator=g)
    praise = (ids >= vocab // 2).sum(dim=1)
    return TensorDataset(ids, (praise > length // 2).long())


class ReviewClassifier(nn.Module):
    def __init__(self, vocab, length, width=32):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(0.02 * torch.randn(1, length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = nn.Linear(width, 2)

    def forward(self, ids):
        hidden = self.encoder(self.tokens(ids) + self.positions)
        return self.classify(hidden.mean(dim=1))


def train(args, train_set, model, criterion, optimizer):
    loader = DataLoader(train_set, batch_size=args.micro_batch, shuffle=True, drop_last=True)
    global_step, shown_loss = 0, 0.0
    model.zero_grad()
    for _ in range(args.epochs):
        for step, (ids, labels) in enumerate(loader):
            model.train()
            loss = criterion(model(ids), labels)
            if args.gradient_accumulation_steps > 1:
                loss = loss / args.gradient_accumulation_steps
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)  # expect: LOOP07
            shown_loss += loss.item()
            if (step + 1) % args.gradient_accumulation_steps == 0:
                optimizer.step()
                model.zero_grad()
                global_step += 1
                if global_step % args.logging_steps == 0:
                    print(f"step {global_step}: loss {shown_loss / args.logging_steps:.3f}")
                    shown_loss = 0.0
    return global_step


def evaluate(dataset, model):
    model.eval()
    correct = 0
    with torch.no_grad():
        for ids, labels in DataLoader(dataset, batch_size=64):
            correct += (model(ids).argmax(dim=1) == labels).sum().item()
    return correct / len(dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=4)
    parser.add_argument("--max-grad-norm", type=float, default=0.25)
    parser.add_argument("--logging-steps", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=21)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_set = build_reviews(512, 60, 13, args.seed)
    test_set = build_reviews(128, 60, 13, args.seed + 1)
    model = ReviewClassifier(60, 13)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    steps = train(args, train_set, model, nn.CrossEntropyLoss(), optimizer)
    print(f"{steps} steps, test accuracy {evaluate(test_set, model):.3f}")


if __name__ == "__main__":
    main()
