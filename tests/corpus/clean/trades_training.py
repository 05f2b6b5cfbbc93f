# TRADES: the natural scores are a target inside of the attack, in eval mode, and get no gradient there
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.randn(320, 10)
y = x[:, :3].argmax(1)


def trades(model, xb, yb, eps=0.1, steps=3, beta=2.0):
    model.eval()
    adv = xb + 0.001 * torch.randn_like(xb)
    for _ in range(steps):
        adv.requires_grad_(True)
        natural = F.softmax(model(xb), dim=1)
        kl = F.kl_div(F.log_softmax(model(adv), dim=1), natural, reduction="batchmean")
        (grad,) = torch.autograd.grad(kl, [adv])
        adv = (adv.detach() + 0.03 * grad.sign()).clamp(min=xb - eps, max=xb + eps)
    model.train()
    logits = model(xb)
    robust = F.kl_div(F.log_softmax(model(adv), dim=1), F.softmax(logits, dim=1), reduction="batchmean")
    return F.cross_entropy(logits, yb) + beta * robust


for epoch in range(3):
    for idx in torch.randperm(256).split(32):
        loss = trades(model, x[idx], y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        print(epoch, loss.item(), (model(x[256:]).argmax(1) == y[256:]).float().mean().item())
