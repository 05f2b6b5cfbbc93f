"""Lies beside a script that is compared: two threads that run other models until it ends.

Draws nothing from the global generators, prints nothing, and leaves no file.
"""

import threading
import time

import torch
from torch import nn


def _make(seed: int) -> nn.Module:
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    torch.set_rng_state(state)
    return model


def _work(model: nn.Module, x: torch.Tensor) -> None:
    while threading.main_thread().is_alive():
        time.sleep(0.0002)  # or the script would wait for Python's lock most of the time
        try:
            model(x).square().mean().backward()
            for parameter in model.parameters():
                parameter.grad = None
        except Exception:  # noqa: BLE001 - what the script has done to torch may not suit these models
            continue


for _seed in range(2):
    threading.Thread(target=_work, args=(_make(_seed), torch.ones(6, 4)), name=f"beside {_seed}").start()
