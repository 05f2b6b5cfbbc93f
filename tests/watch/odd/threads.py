"""Threads that train, one after the other and at once, and a pool that does."""
import threading
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn
from training import batches, digest

def make(seed):
    torch.manual_seed(seed)
    return nn.Linear(4, 3)

def work(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    local.name = threading.current_thread().name
    return digest(model)

local = threading.local()
models = [make(seed) for seed in range(6)]
work(models[0])
together = [threading.Thread(target=work, args=(model,), name=f"worker {n}") for n, model in enumerate(models[1:3])]
for thread in together:
    thread.start()
for thread in together:
    thread.join()
with ThreadPoolExecutor(2, thread_name_prefix="pool") as pool:
    print(*pool.map(work, models[3:]))
print([sorted(vars(thread)) for thread in together], threading.active_count(), local.name)
print(*map(digest, models))
