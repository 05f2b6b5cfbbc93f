"""Loops that are easily disturbed by who looks on; each prints a digest of weights, losses and generators."""

import hashlib
import random
import sys

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


def digest(*values):
    found = hashlib.sha256()
    for value in values:
        tensor = torch.as_tensor(value).detach()
        found.update(str(tensor.dtype).encode() + tensor.double().numpy().tobytes())
    found.update(torch.get_rng_state().numpy().tobytes())
    found.update(repr((random.getstate(), numpy.random.get_state()[1].tolist())).encode())
    return found.hexdigest()


def tell(name, model, losses):
    versions = [item._version for item in model.parameters()]
    grads = [item.grad for item in model.parameters() if item.grad is not None]
    print(name, digest(*losses, *model.state_dict().values(), *grads), versions)


def net():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def recompute():
    model, losses = net(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(12):
        x, y = torch.randn(8, 6), torch.arange(8) % 3
        hidden = checkpoint(model[:4], x, use_reentrant=step % 2 == 0)
        loss = F.cross_entropy(model[4](hidden), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    tell("recompute", model, losses)


def scale():
    model, losses = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3)
    for step in range(12):
        x = torch.randn(8, 6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean() * (float("inf") if step == 5 else 1.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.nan_to_num())
    print(scaler.get_scale())
    tell("scale", model, losses)


def search():
    model, losses = net(), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    x, y = torch.randn(24, 6), torch.arange(24) % 3

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss)
        return loss

    for _ in range(6):
        optimizer.step(closure)
    tell("search", model, losses)


class Noisy(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        noise = torch.randn(6) * 0.1 + float(random.random() + numpy.random.rand())
        return noise + index / 48, index % 3


def work():
    model, losses = net(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
    loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=numpy.random.seed)
    for _ in range(2):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss)
        model.eval()
        with torch.no_grad():
            losses.append(model(x).mean())
    tell("work", model, losses)


def penalise():
    model, losses = net(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(12):
        x = torch.randn(8, 6, requires_grad=True)
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = out.square().mean() + slope.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    tell("penalise", model, losses)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        random.seed(1)
        numpy.random.seed(2)
        torch.manual_seed(3)
        globals()[name]()
