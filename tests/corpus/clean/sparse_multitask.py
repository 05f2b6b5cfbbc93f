"""Two tasks with one trunk; the rating is known for every third batch only, and its head is run only then."""

import torch
from torch import nn


class Reviews:
    """Bags of 30 numbers: a topic (5 classes) for all, a rating (a number) for the annotated source."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.topics = torch.randn(5, 30, generator=self.generator)
        self.taste = torch.randn(30, generator=self.generator) / 30**0.5

    def batch(self, count, rated):
        topic = torch.randint(0, 5, (count,), generator=self.generator)
        x = self.topics[topic] + torch.randn(count, 30, generator=self.generator)
        rating = x @ self.taste + 0.1 * torch.randn(count, generator=self.generator)
        return {"x": x, "topic": topic, "rating": rating if rated else None}


class TwoHeads(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(30, width), nn.LayerNorm(width), nn.GELU())
        self.topic = nn.Linear(width, 5)
        self.rating = nn.Linear(width, 1)

    def forward(self, x, with_rating):
        h = self.trunk(x)
        return self.topic(h), self.rating(h).squeeze(-1) if with_rating else None


def decay_groups(model, decay):
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def multitask_loss(model, batch):
    rated = batch["rating"] is not None
    topic, rating = model(batch["x"], with_rating=rated)
    loss = nn.functional.cross_entropy(topic, batch["topic"])
    if rated:
        loss = loss + 0.5 * nn.functional.mse_loss(rating, batch["rating"])
    return loss


@torch.no_grad()
def report(model, batch):
    model.eval()
    topic, rating = model(batch["x"], with_rating=True)
    accuracy = (topic.argmax(dim=1) == batch["topic"]).float().mean().item()
    error = (rating - batch["rating"]).abs().mean().item()
    print(f"  topic accuracy {accuracy:.3f}, rating error {error:.3f}")
    model.train()


def main(steps=150):
    torch.manual_seed(71)
    reviews = Reviews(seed=71)
    test = reviews.batch(400, rated=True)
    model = TwoHeads()
    optimizer = torch.optim.AdamW(decay_groups(model, 0.01), lr=3e-3)
    model.train()
    for step in range(steps):
        batch = reviews.batch(64, rated=step % 3 == 0)
        loss = multitask_loss(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}")
            report(model, test)


if __name__ == "__main__":
    main()
