"""Loaders: workers, samplers and collation of the script's own, a generator, a stream, a mapped file."""
import random
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, WeightedRandomSampler, get_worker_info
from training import digest, small, train

class Rows(Dataset):
    def __init__(self):
        np.save("rows.npy", np.arange(144, dtype=np.float32).reshape(36, 4))
        self.rows = np.load("rows.npy", mmap_mode="r")
    def __len__(self): return 36
    def __getitem__(self, index):
        info = get_worker_info()
        drawn = torch.rand(1).item() + random.random() + np.random.rand() if info is None else 0.0
        return torch.from_numpy(self.rows[index].copy()) / 100 + drawn, index % 3

class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter([(torch.full((4,), float(number)), number % 3) for number in range(info.id if info else 0, 36, info.num_workers if info else 1)])

class Backwards(Sampler):
    def __iter__(self): return iter(range(35, -1, -1))
    def __len__(self): return 36

def collate(rows):
    return torch.stack([row[0] for row in rows]), torch.tensor([row[1] for row in rows])

def begin(worker):
    print("worker", flush=True)

random.seed(0), np.random.seed(0)
model, data = small(), Rows()
for loader in (
    DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(3)), DataLoader(data, 4, sampler=Backwards(), collate_fn=collate),
    DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 5, drop_last=True)), DataLoader(Stream(), 4),
    DataLoader(data, 4, num_workers=1, persistent_workers=True, worker_init_fn=begin), DataLoader(Stream(), 4, num_workers=1),
    DataLoader(data, 4, sampler=WeightedRandomSampler([1.0] * 36, 20)), DataLoader(data, 4, shuffle=True),
):
    for _ in range(2):
        train(model, given=loader)
    print(digest(model), torch.rand(1).item(), random.random(), np.random.rand(), flush=True)
