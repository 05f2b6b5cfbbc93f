"""State that callables hold: partials, bound methods, defaults, attributes of functions, cached results."""

import functools

import torch
from torch import nn


class Meter:
    def __init__(self, size):
        self.total = torch.zeros(size)

    def add(self, value):
        self.total += value


def accumulate(bank, value):
    bank.add_(value)


def smooth(value, *, trace=torch.zeros(3)):  # noqa: B008 - on purpose: a default is state
    trace.mul_(0.5).add_(value)


def count(value):
    count.sums = count.sums + value


@functools.lru_cache
def table(size):
    return torch.arange(float(size))


def run(callbacks, model, optimizer):
    for step in range(4):
        optimizer.zero_grad()
        output = model(torch.randn(5, 4))
        output.square().mean().backward()
        optimizer.step()
        for callback in callbacks:
            callback(output.detach().sum(0))
        # plant 0-2: callbacks[0].args[0] | callbacks[0].keywords["value"] | callbacks[1].__self__.total
        # plant 0-2: smooth.__kwdefaults__["trace"] | count.sums | table(6)


def main():
    torch.manual_seed(0)
    count.sums = torch.zeros(3)
    table(6)
    model = nn.Linear(4, 3)
    first = functools.partial(
        lambda bank, _, value: accumulate(bank, value), torch.zeros(3), value=torch.ones(3)
    )
    callbacks = [first, Meter(3).add, lambda value: smooth(value), count]
    run(callbacks, model, torch.optim.SGD(model.parameters(), lr=0.1))


main()
