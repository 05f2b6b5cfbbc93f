"""Loops that are generators, coroutines and decorators; code that is compiled and executed as it runs."""
import functools, itertools
import torch
from torch import nn
from training import batches, digest, small

def endless():
    while True:
        yield from batches(4)

def steps(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        while True:
            x, y = yield
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    finally:
        print("closed")

model = small()
loop = steps(model)
next(loop)
for pair in itertools.islice(endless(), 9):
    loop.send(pair)
loop.close()
code = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches():
    optimizer.zero_grad(); nn.functional.cross_entropy(model(x), y).backward(); optimizer.step()
1 / 0
"""
names = {"torch": torch, "nn": nn, "model": model, "batches": batches}
for source in (code, compile(code, "made up.py", "exec")):
    try:
        exec(source, names)
    except ZeroDivisionError as error:
        trace = error.__traceback__.tb_next
        print(trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_next)
print(eval("model(torch.ones(1, 4)).sum().item()"), functools.reduce(lambda total, item: total + item.numel(), model.parameters(), 0), digest(model))
