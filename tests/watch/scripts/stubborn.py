"""Catches everything, for ever."""

import atexit
import sys

import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if sys.argv[1] == "once":
    atexit.register(print, "atexit")
while True:
    try:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    except:  # noqa: E722
        print("caught", flush=True)
        if sys.argv[1] == "once":
            break
    finally:
        if sys.argv[1] == "never":
            print("finally")
