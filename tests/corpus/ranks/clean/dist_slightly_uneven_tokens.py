"""Padded sentences with about as many tokens on each rank: the usual mean."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Sentences(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(8, 16, (96,), generator=generator)
        self.items = [torch.randint(1, 40, (int(n),), generator=generator) for n in lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(items):
    return pad_sequence(items, batch_first=True)


dist.init_process_group("gloo")
torch.manual_seed(0)
data = Sentences()
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler, collate_fn=collate)
model = DDP(nn.Sequential(nn.Embedding(40, 24, padding_idx=0), nn.Linear(24, 40)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for words in loader:
        logits = model(words[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
