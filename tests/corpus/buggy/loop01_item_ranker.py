"""Pairwise ranking of items for users (BPR): embeddings and scoring network have an optimizer each."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Ranker(nn.Module):
    def __init__(self, users, items, width):
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(items, width)
        self.score = nn.Sequential(nn.Linear(3 * width, 48), nn.GELU(), nn.Linear(48, 1, bias=False))

    def embedding_parameters(self):
        return [*self.user.parameters(), *self.item.parameters()]

    def forward(self, users, items):
        u, i = self.user(users), self.item(items)
        return self.score(torch.cat([u, i, u * i], dim=1)).squeeze(1)


class Interactions:
    """Users like the items whose hidden taste vector points in their own direction."""

    def __init__(self, users, items, generator):
        self.generator = generator
        taste = torch.randn(users, 4, generator=generator)
        kind = torch.randn(items, 4, generator=generator)
        self.affinity = taste @ kind.T
        self.users, self.items = users, items

    def sample(self, n):
        users = torch.randint(self.users, (n,), generator=self.generator)
        a = torch.randint(self.items, (n,), generator=self.generator)
        b = (a + torch.randint(1, self.items, (n,), generator=self.generator)) % self.items
        swap = self.affinity[users, a] < self.affinity[users, b]
        return users, torch.where(swap, b, a), torch.where(swap, a, b)


def bpr_loss(model, users, liked, other):
    return -F.logsigmoid(model(users, liked) - model(users, other)).mean()


@torch.no_grad()
def ordered_right(model, data, n=2000):
    model.eval()
    users, liked, other = data.sample(n)
    return (model(users, liked) > model(users, other)).float().mean().item()


def train_step(model, data, optimizers, batch):
    model.train()
    dense, sparse = optimizers
    loss = bpr_loss(model, *data.sample(batch))
    dense.zero_grad()
    loss.backward()  # expect: LOOP01
    dense.step()
    sparse.step()  # expect: LOOP01
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--embedding-lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(9)
    data = Interactions(60, 80, torch.Generator().manual_seed(9))
    model = Ranker(60, 80, width=12)
    optimizers = (
        torch.optim.Adam(model.score.parameters(), lr=args.lr),
        torch.optim.RMSprop(model.embedding_parameters(), lr=args.embedding_lr),
    )
    smooth = 0.693
    for step in range(1, args.steps + 1):
        smooth = 0.97 * smooth + 0.03 * train_step(model, data, optimizers, args.batch)
        if step % 75 == 0:
            print(f"step {step}: loss {smooth:.3f}  pairs in order {ordered_right(model, data):.3f}")


if __name__ == "__main__":
    main()
