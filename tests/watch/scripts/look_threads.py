"""Operations in threads: one of each kind, and a pool that was there before the window."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pool = ThreadPoolExecutor(1)
pool.submit(torch.ones, 1).result()
before = threading.active_count()


class Adder(threading.Thread):
    def run(self):
        total.add_(1)  # -> class


def work():
    total.mul_(2)  # -> function


def task():
    return total.square()  # -> task


for _ in range(2):
    total = torch.ones(3)  # -> made
    for thread in (Adder(), threading.Thread(target=work)):
        thread.start()
        thread.join()
    loss = model(pool.submit(task).result()).sum()  # -> loss
    loss.backward()
    optimizer.step()
pool.shutdown()
assert threading.active_count() == before - 1, threading.enumerate()
print("loss", loss.item().hex())
