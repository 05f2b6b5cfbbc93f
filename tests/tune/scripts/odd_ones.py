"""Trainings of other shapes: adversaries, a closure and a teacher, one model after the other."""

import copy
import gc

import torch
import torch.nn.functional as F
from telling import Probe, tell
from torch import nn

torch.manual_seed(7)


def make():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


maker, judge = make(), nn.Sequential(make(), nn.Linear(4, 1))
makers = torch.optim.Adam(maker.parameters(), lr=0.01)
judges = torch.optim.RMSprop(judge.parameters(), lr=0.01)
losses = []
for _ in range(3):
    real, fake = torch.randn(8, 4), maker(torch.randn(8, 4))
    judges.zero_grad()
    loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
    loss.backward()
    judges.step()
    makers.zero_grad()
    F.softplus(-judge(fake)).mean().backward()
    makers.step()
    losses.append(loss.item())

pupil = make()
teacher = copy.deepcopy(pupil).eval()
second = torch.optim.LBFGS(pupil.parameters(), max_iter=3)
x = torch.randn(8, 4)
with torch.no_grad():
    wanted = teacher(x)


def closure():
    second.zero_grad()
    loss = F.mse_loss(pupil(x), wanted * 2)
    loss.backward()
    return loss


losses.extend(second.step(closure).item() for _ in range(3))

for _ in range(4):  # a fold each: the memory of one model is likely that of the next
    model = make()
    probe = Probe(model[0])
    third = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        third.zero_grad()
        F.mse_loss(model(x), x).backward()
        third.step()
    tell([maker, judge, model], [makers, third], probes=[probe], losses=losses, address=id(model))
    del model, third, probe
    gc.collect()
