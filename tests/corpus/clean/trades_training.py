"""PGD adversarial training: the attack is made in eval mode; TRADES-like loss."""
import torch
from torch import nn
import torch.nn.functional as F


def attack(model, x, y, eps=0.2, alpha=0.08, steps=3):
    model.eval()
    delta = torch.zeros_like(x).uniform_(-eps, eps).requires_grad_(True)
    for _ in range(steps):
        loss = F.cross_entropy(model(x + delta), y)
        grad, = torch.autograd.grad(loss, delta)
        delta = (delta + alpha * grad.sign()).clamp(-eps, eps).detach().requires_grad_(True)
    model.train()
    return (x + delta).detach()


def main():
    torch.manual_seed(10)
    x = torch.randn(360, 14)
    y = (x @ torch.randn(14, 3)).argmax(1)
    model = nn.Sequential(nn.Linear(14, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(3):
        model.train()
        for idx in torch.randperm(300).split(30):
            adv = attack(model, x[idx], y[idx])
            clean_logits, adv_logits = model(x[idx]), model(adv)
            loss = F.cross_entropy(clean_logits, y[idx]) + F.kl_div(F.log_softmax(adv_logits, 1), F.softmax(clean_logits, 1), reduction="batchmean")
            opt.zero_grad()
            loss.backward()
            opt.step()
        hard = attack(model, x[300:], y[300:])
        model.eval()
        with torch.no_grad():
            print(epoch, (model(hard).argmax(1) == y[300:]).float().mean().item())


main()
