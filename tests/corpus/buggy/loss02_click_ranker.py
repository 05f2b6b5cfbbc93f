"""Neural matrix factorisation for implicit feedback with sampled negatives."""

import torch
from torch import nn

USERS, ITEMS, FACTORS = 200, 300, 16


def clicks(generator):
    """Users and items have hidden tastes; a click happens where the tastes agree."""
    users = torch.randn(USERS, 4, generator=generator)
    items = torch.randn(ITEMS, 4, generator=generator)
    affinity = users @ items.T + 0.5 * torch.randn(USERS, ITEMS, generator=generator)
    pairs = (affinity > 2.5).nonzero()
    return pairs[torch.randperm(len(pairs), generator=generator)]


class NeuralMF(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, FACTORS)
        self.item = nn.Embedding(ITEMS, FACTORS)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        self.tower = nn.Sequential(nn.Linear(2 * FACTORS, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, user, item):
        u, i = self.user(user), self.item(item)
        score = (u * i).sum(dim=-1) + self.tower(torch.cat([u, i], dim=-1)).squeeze(-1)
        return torch.sigmoid(score)  # expect: LOSS02


class Recommender:
    def __init__(self, positives, batch_size=256, negatives=3, lr=1e-2):
        self.positives = positives
        self.batch_size = batch_size
        self.negatives = negatives
        self.model = NeuralMF()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.loss = nn.BCEWithLogitsLoss()

    def batches(self):
        for chunk in self.positives[torch.randperm(len(self.positives))].split(self.batch_size):
            user = chunk[:, 0].repeat(1 + self.negatives)
            sampled = torch.randint(0, ITEMS, (len(chunk) * self.negatives,))
            item = torch.cat([chunk[:, 1], sampled])
            clicked = torch.cat([torch.ones(len(chunk)), torch.zeros(len(sampled))])
            yield user, item, clicked

    def fit(self, epochs):
        self.model.train()
        for epoch in range(epochs):
            total, seen = 0.0, 0
            for user, item, clicked in self.batches():
                self.optimizer.zero_grad()
                loss = self.loss(self.model(user, item), clicked)  # expect: LOSS02
                loss.backward()
                self.optimizer.step()
                total += loss.item() * len(user)
                seen += len(user)
            print(f"epoch {epoch}: loss {total / seen:.4f}")

    @torch.no_grad()
    def auc(self, held_out):
        """Share of pairs in which a clicked item ranks above a random one."""
        self.model.eval()
        user, item = held_out.unbind(dim=1)
        rival = torch.randint(0, ITEMS, item.shape)
        return (self.model(user, item) > self.model(user, rival)).float().mean().item()


def main():
    torch.manual_seed(11)
    pairs = clicks(torch.Generator().manual_seed(11))
    cut = int(0.9 * len(pairs))
    recommender = Recommender(pairs[:cut])
    recommender.fit(epochs=4)
    print(f"held-out AUC {recommender.auc(pairs[cut:]):.3f}")


if __name__ == "__main__":
    main()
