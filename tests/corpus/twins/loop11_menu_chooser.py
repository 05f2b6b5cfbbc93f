"""Learns what guests order: a listwise choice model over menus, trained on shares of orders."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    menu: int = 6
    features: int = 8
    train: int = 1024
    test: int = 256
    batch: int = 64
    epochs: int = 5
    lr: float = 3e-3
    seed: int = 61


def hidden_taste(dishes):
    return 1.5 * dishes[..., 0] - dishes[..., 1].square() + dishes[..., 2] * dishes[..., 3]


def menus(cfg, n, generator):
    """Dishes of each menu, which of them are on offer, and the share of orders each one got."""
    dishes = torch.randn(n, cfg.menu, cfg.features, generator=generator)
    offered = torch.rand(n, cfg.menu, generator=generator) < 0.999
    offered[:, 0] = True
    utility = hidden_taste(dishes).masked_fill(~offered, float("-inf"))
    shares = F.softmax(utility, dim=1)
    return TensorDataset(dishes, offered, shares)


class ChoiceModel(nn.Module):
    def __init__(self, features, hidden=48):
        super().__init__()
        self.utility = nn.Sequential(
            nn.Linear(features, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, 1, bias=False),
        )

    def forward(self, dishes, offered):
        utility = self.utility(dishes).squeeze(-1)
        return F.softmax(utility.masked_fill(~offered, float("-inf")), dim=1)


def choice_loss(probs, shares):
    return -(shares * torch.log(probs.clamp_min(1e-9))).sum(dim=1).mean()


def train_epoch(model, loader, optimizer):
    model.train()
    total, batches = 0.0, 0
    for dishes, offered, shares in loader:
        optimizer.zero_grad()
        loss = choice_loss(model(dishes, offered), shares)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
        batches += 1
    return total / batches


@torch.no_grad()
def favourite_found(model, dataset):
    model.eval()
    dishes, offered, shares = dataset.tensors
    return (model(dishes, offered).argmax(dim=1) == shares.argmax(dim=1)).float().mean().item()


def main(cfg):
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    train_loader = DataLoader(menus(cfg, cfg.train, generator), batch_size=cfg.batch, shuffle=True)
    test_set = menus(cfg, cfg.test, generator)
    model = ChoiceModel(cfg.features)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        loss = train_epoch(model, train_loader, optimizer)
        print(f"epoch {epoch}: loss {loss:.3f}  favourite found {favourite_found(model, test_set):.3f}")


if __name__ == "__main__":
    main(Config())
