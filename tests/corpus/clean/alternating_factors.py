"""Matrix factorisation with two optimizers in turn: odd steps move the users, even steps the items."""

import torch
from torch import nn

torch.manual_seed(73)

USERS, ITEMS, RANK = 120, 80, 4


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, RANK)
        self.item = nn.Embedding(ITEMS, RANK)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)

    def forward(self, users, items):
        return (self.user(users) * self.item(items)).sum(dim=-1)


def make_ratings(count):
    user_taste, item_style = torch.randn(USERS, RANK), torch.randn(ITEMS, RANK)
    pairs = torch.randperm(USERS * ITEMS)[:count]
    users, items = pairs // ITEMS, pairs % ITEMS
    ratings = (user_taste[users] * item_style[items]).sum(dim=1) / RANK**0.5 + 0.1 * torch.randn(count)
    return users, items, ratings


users, items, ratings = make_ratings(6000)
train, test = slice(0, 5000), slice(5000, None)
model = Factors()
user_optimizer = torch.optim.Adam(model.user.parameters(), lr=0.05)
item_optimizer = torch.optim.Adam(model.item.parameters(), lr=0.05)


def half_step(rows, moving, fixed, optimizer):
    """Move one side while the other is held still."""
    moving.requires_grad_(True)
    fixed.requires_grad_(False)
    prediction = model(users[train][rows], items[train][rows])
    loss = nn.functional.mse_loss(prediction, ratings[train][rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def rmse(part):
    model.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(model(users[part], items[part]), ratings[part]).sqrt().item()


step = 0
for epoch in range(8):
    model.train()
    for rows in torch.randperm(5000).split(250):
        if step % 2:
            half_step(rows, model.user, model.item, user_optimizer)
        else:
            half_step(rows, model.item, model.user, item_optimizer)
        step += 1
    print(f"epoch {epoch}: train rmse {rmse(train):.3f} test rmse {rmse(test):.3f}")
