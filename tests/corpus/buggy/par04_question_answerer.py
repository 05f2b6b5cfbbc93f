"""Picks the answer to a question about a list of items; encoder, pooler and classifier with own rates."""

import torch
from torch import nn

torch.manual_seed(40)

ITEMS, COLOURS, SHAPES = 5, 6, 5


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.colour = nn.Embedding(COLOURS, width)
        self.shape = nn.Embedding(SHAPES, width)
        self.mix = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, colours, shapes):
        return self.mix(torch.cat([self.colour(colours), self.shape(shapes)], dim=-1))


class Pooler(nn.Module):
    """The asked colour attends to the items."""

    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.dense = nn.Linear(width, width)

    def forward(self, question, items):
        scores = (items @ self.query(question).unsqueeze(-1)).squeeze(-1) / items.shape[-1] ** 0.5
        pooled = (scores.softmax(dim=1).unsqueeze(-1) * items).sum(dim=1)
        return torch.tanh(self.dense(pooled))


class QuestionAnswerer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.encoder = Encoder(width)
        self.pooler = Pooler(width)
        self.classifier = nn.Linear(width, SHAPES)

    def forward(self, question, colours, shapes):
        items = self.encoder(colours, shapes)
        return self.classifier(self.pooler(self.encoder.colour(question), items))

    def parameter_groups(self, base_lr):
        groups = [{"params": self.encoder.parameters(), "lr": base_lr}]
        groups.append({"params": self.classifier.parameters(), "lr": 2 * base_lr})
        return groups  # expect: PAR04


def scenes(n):
    colours = torch.rand(n, COLOURS).argsort(dim=1)[:, :ITEMS]
    shapes = torch.randint(SHAPES, (n, ITEMS))
    position = torch.randint(ITEMS, (n, 1))
    return colours.gather(1, position).squeeze(1), colours, shapes, shapes.gather(1, position).squeeze(1)


model = QuestionAnswerer()
optimizer = torch.optim.Adam(model.parameter_groups(base_lr=4e-3))  # expect: PAR04
criterion = nn.CrossEntropyLoss()
test_question, test_colours, test_shapes, test_answers = scenes(512)

smooth = 1.6
for step in range(1, 161):
    model.train()
    question, colours, shapes, answers = scenes(64)
    loss = criterion(model(question, colours, shapes), answers)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smooth = 0.97 * smooth + 0.03 * loss.item()
    if step % 40 == 0:
        model.eval()
        with torch.no_grad():
            guess = model(test_question, test_colours, test_shapes).argmax(dim=1)
        print(f"step {step}: loss {smooth:.3f}  test {(guess == test_answers).float().mean().item():.3f}")
